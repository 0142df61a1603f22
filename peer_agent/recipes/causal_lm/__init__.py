"""A causal language model: every token but a sample's first is predicted from those before it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from peer_agent.protocol.recipe import Recipe, Rule, Words, register
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.samples import samples_in, shard_bytes

# Floats that forward keeps for backward, a layer, for each token and unit of width; measured with transformers 5.
KEPT = {"gpt2": 39.0, "llama": 27.0}
NAMES = {"gpt2": "GPT-2", "llama": "Llama"}
KEPT_LOGITS = 3.2  # of each token and entry of the vocabulary: logits, their logarithms, a gradient


class Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A causal language model built from a transformers configuration."""

    family: Literal["gpt2", "llama"] = "gpt2"
    layers: Annotated[int, Meta(ge=1, le=64)] = 2
    width: Annotated[int, Meta(ge=16, le=8192)] = 64
    heads: Annotated[int, Meta(ge=1, le=128)] = 4
    context: Annotated[int, Meta(ge=8, le=8192)] = 64  # tokens in a sample


@register
class CausalLM(Recipe, frozen=True, kw_only=True, tag="causal_lm"):
    """GPT-2 or Llama from the first parameters on, on one text. A sample is `context` tokens of it."""

    title = "Language model"
    training = "peer_agent.recipes.causal_lm.training"
    task = "text-generation"
    largest = "model.layers"
    words = (
        Words("family", "model.family", "Family", "GPT-2 is the simplest; Llama is what most tools expect today."),
        Words("layers", "model.layers", "Layers", "2 to 4 learn on laptops within the hour."),
        Words("width", "model.width", "Width", "A multiple of the heads."),
        Words("heads", "model.heads", "Heads"),
        Words("context", "model.context", "Context", "Tokens in a sample: how far the model looks back."),
        Words("vocab", "vocab", "Vocabulary", "Pieces that words are cut into; fewer suit a small text."),
    )

    model: Model = Model()
    vocab: Annotated[int, Meta(ge=257, le=65_536)] = 2048  # set from the tokenizer

    def samples_in(self, size: int) -> int:
        """Of a shard of so many tokens."""
        return samples_in(size, self.model.context)

    def least_size(self) -> int:
        """Of the tokens that one whole sample takes."""
        return self.model.context

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Tokens but the first of each sample, which nothing predicts. A shard's last sample may be cut short, but
        predicts something.
        """
        each = self.model.context - 1
        return (samples - 1) * each + 1, samples * each

    def parameters(self) -> int:
        """Embeddings and 12 width^2 a layer."""
        model = self.model
        return self.vocab * model.width + model.context * model.width + model.layers * 12 * model.width**2

    def kept_floats(self, samples: int) -> float:
        """Attention keeps no square of the context: torch's own kernels do without."""
        model = self.model
        a_token = model.layers * model.width * KEPT[model.family] + self.vocab * KEPT_LOGITS
        return samples * model.context * a_token

    def rules(self) -> Iterable[Rule]:
        """Of the model's shape."""
        model = self.model
        is_odd = model.family == "llama" and model.width // model.heads % 2 == 1
        uneven = f"width {model.width} is not a multiple of heads {model.heads}"
        yield Rule("model.width", uneven, model.width % model.heads != 0)
        yield Rule("model.width", "a head of a llama needs an even width", is_odd)

    def preparation(self) -> TextPreparation:
        """By a tokenizer of its vocabulary."""
        return TextPreparation(self.vocab)

    def fitted(self, data: Mapping[str, Any]) -> Self:
        """A small text may have fewer different pieces than were asked for; the model has exactly one row for each."""
        return replace(self, vocab=data["vocab"])

    def shard_bytes(self, size: int) -> int:
        """Two bytes a token."""
        return shard_bytes(size)

    def usage(self, model: str) -> str:
        """It writes."""
        return (
            "from transformers import pipeline\n"
            f'write = pipeline("text-generation", model={model})\n'
            'print(write("Once")[0]["generated_text"])'
        )

    def summary(self) -> str:
        """As in `a GPT-2 language model of 2 layers of width 64, context 64, 2,048 tokens`."""
        model = self.model
        return (
            f"a {NAMES[model.family]} language model of {model.layers} layers of width {model.width}, "
            f"context {model.context:,}, {self.vocab:,} tokens"
        )
