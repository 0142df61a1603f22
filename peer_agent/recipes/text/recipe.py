"""What recipes that learn from a text have in common: samples are stretches of it, cut by a tokenizer of its own."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Protocol, Self

from msgspec import Meta
from msgspec.structs import replace

from peer_agent.protocol.recipe import Preparation, Recipe, Rule
from peer_agent.recipes.text.preparation import TextPreparation

# Samples of a text, and its shards: a sample is `context` tokens of a shard, whose tail is a shorter one
# if it has two tokens or more.

HEADER_BYTES = 64 * 1024  # beside the tokens


def samples_in(tokens: int, context: int) -> int:
    """How many samples a shard of that many tokens holds."""
    return tokens // context + (tokens % context >= 2)


def shard_bytes(tokens: int, *, sentences: bool = False) -> int:
    """Of a shard of that many tokens, at most, and of where its sentences begin, of which each has a token at least."""
    return HEADER_BYTES + tokens * (2 + 4 * sentences)


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


KEPT_LOGITS = 3.2  # of each token and entry of the vocabulary: logits, their logarithms, a gradient


class Shape(Protocol):
    """What a recipe's model has to say for it."""

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def context(self) -> int: ...


def kept_floats(shape: Shape, *, vocab: int, samples: int, a_layer: float, predicted: float = 1.0) -> float:
    """About how many floats forward keeps for backward: `a_layer` of them for each token and unit of width.

    `predicted`: the part of all tokens that have logits. Attention keeps no square of the context: torch's own kernels
    do without.
    """
    return samples * shape.context * (shape.layers * shape.width * a_layer + predicted * vocab * KEPT_LOGITS)


def recomputed_floats(shape: Shape, *, vocab: int, samples: int, a_layer: float, predicted: float = 1.0) -> float:
    """The same where each layer keeps its input, and one at a time all that it needs."""
    return samples * shape.context * (shape.width * (shape.layers + a_layer) + predicted * vocab * KEPT_LOGITS)


def operations(shape: Shape, *, vocab: int, samples: int, predicted: float = 1.0) -> float:
    """About how many floating-point operations forward and backward take: two for each weight and token, three times.

    Attention beside them looks at the whole context (arXiv 2001.08361, section 2.1).
    """
    matrices = 12 * shape.layers * shape.width**2 + predicted * vocab * shape.width
    return 6.0 * samples * shape.context * (matrices + 2 * shape.layers * shape.context * shape.width)


def even_heads(shape: Shape) -> Rule:
    """The heads share the width."""
    uneven = f"width {shape.width} is not a multiple of heads {shape.heads}"
    return Rule("model.width", uneven, shape.width % shape.heads != 0)
