"""The recipe of `docs/adding-a-recipe.md`, in a test file. The model predicts each token from the previous one."""

from typing import Annotated

from msgspec import Meta

from peer_agent.protocol.recipe import Words, register
from peer_agent.recipes.text.recipe import TextRecipe


@register
class Bigram(TextRecipe, frozen=True, kw_only=True, tag="bigram"):
    """A table of how often each token follows another. A sample has `context` tokens."""

    title = "Bigram table"
    about = "Counts which token follows which."
    training = "tests.recipes.bigram.training"
    words = (
        Words("context", "context", "Context", "Tokens per sample."),
        Words("vocab", "vocab", "Vocabulary", "Number of tokens."),
    )

    context: Annotated[int, Meta(ge=8, le=8192)] = 64
    vocab: Annotated[int, Meta(ge=257, le=4096)] = 512

    @property
    def stretch(self) -> int:
        """The length of a sample, which consists of text only."""
        return self.context

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Return the lowest and the highest number of predicted tokens. The first token of a sample is not
        predicted."""
        return (samples - 1) * (self.context - 1) + 1, samples * (self.context - 1)

    def parameters(self) -> int:
        return self.vocab**2

    def kept_floats(self, samples: int) -> float:
        """Return how many floats are kept: logits, their logarithms and a gradient."""
        return 3.0 * samples * self.context * self.vocab

    def usage(self, model: str) -> str:
        return f"from safetensors.numpy import load_file\nprint(load_file({model} + '/model.safetensors')['table'])"

    def summary(self) -> str:
        """Return a phrase such as `a table of 512 x 512 tokens`."""
        return f"a table of {self.vocab:,} x {self.vocab:,} tokens"
