"""What recipes that learn from a text have in common: samples are stretches of it, cut by a tokenizer of its own."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta
from msgspec.structs import replace

from peer_agent.protocol.recipe import Preparation, Recipe
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.samples import samples_in, shard_bytes


class TextRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe whose data are tokens."""

    prepares: ClassVar[type[Preparation]] = TextPreparation

    vocab: Annotated[int, Meta(ge=257, le=65_536)] = 2048  # set from the tokenizer

    @property
    @abstractmethod
    def stretch(self) -> int:
        """Tokens of text in a sample."""

    def samples_in(self, size: int) -> int:
        """Of a shard of so many tokens."""
        return samples_in(size, self.stretch)

    def least_size(self) -> int:
        """Of the tokens that one whole sample takes."""
        return self.stretch

    def preparation(self) -> TextPreparation:
        """By a tokenizer of its vocabulary."""
        return TextPreparation(self.vocab)

    def fitted(self, data: Mapping[str, Any]) -> Self:
        """A small text may have fewer different pieces than were asked for; the model has exactly one row for each."""
        return replace(self, vocab=data["vocab"])

    def shard_bytes(self, size: int) -> int:
        """Of a shard of so many tokens, at most."""
        return shard_bytes(size, sentences=self.preparation().sentences)


def usage_of_writer(model: str) -> str:
    """Lines of Python that have a released language model write. `model`: its folder or name as a Python string."""
    return (
        "from transformers import pipeline\n"
        f'write = pipeline("text-generation", model={model})\n'
        'print(write("Once")[0]["generated_text"])'
    )
