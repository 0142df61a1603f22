"""The base class of the text recipes. Samples are stretches of a text, tokenized with the text's own tokenizer."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Protocol, Self

from msgspec import Meta
from msgspec.structs import replace

from peer_agent.protocol.recipe import Preparation, Recipe, Rule
from peer_agent.recipes.text.preparation import TextPreparation

# A sample is `context` tokens of a shard. The remainder of a shard is a shorter sample if it has at least two tokens.

HEADER_BYTES = 64 * 1024  # most bytes besides the tokens


def samples_in(tokens: int, context: int) -> int:
    return tokens // context + (tokens % context >= 2)


def shard_bytes(tokens: int, *, sentences: bool = False) -> int:
    """Return the maximum size of a shard in bytes. With `sentences`, each token may start a sentence, which takes 4
    bytes.
    """
    return HEADER_BYTES + tokens * (2 + 4 * sentences)


class TextRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe that trains on tokens of text."""

    prepares: ClassVar[type[Preparation]] = TextPreparation

    vocab: Annotated[int, Meta(ge=257, le=65_536)] = 2048  # set from the tokenizer

    @property
    @abstractmethod
    def stretch(self) -> int:
        """The number of text tokens in a sample."""

    def samples_in(self, size: int) -> int:
        return samples_in(size, self.stretch)

    def least_size(self) -> int:
        return self.stretch

    def preparation(self) -> TextPreparation:
        return TextPreparation(self.vocab)

    def fitted(self, data: Mapping[str, Any]) -> Self:
        """Return the recipe with the tokenizer's vocabulary size, which may be smaller than requested if the text is
        short.
        """
        return replace(self, vocab=data["vocab"])

    def shard_bytes(self, size: int) -> int:
        return shard_bytes(size, sentences=self.preparation().sentences)


def usage_of_writer(model: str) -> str:
    """Return Python code that generates text with a released model. `model`: its folder or name, in quotes."""
    return (
        "from transformers import pipeline\n"
        f'write = pipeline("text-generation", model={model})\n'
        'print(write("Once")[0]["generated_text"])'
    )


KEPT_LOGITS = 3.2  # floats per token and vocabulary entry: logits, their logarithms, a gradient


class Shape(Protocol):
    """The dimensions of a transformer that the estimates use."""

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def context(self) -> int: ...


def kept_floats(shape: Shape, *, vocab: int, samples: int, a_layer: float, predicted: float = 1.0) -> float:
    """Estimate how many floats are kept for the backward pass.

    `a_layer`: floats per layer, token and unit of width. `predicted`: the fraction of tokens with logits. The estimate
    does not grow with the square of the context, because torch's kernels do not keep the attention matrix.
    """
    return samples * shape.context * (shape.layers * shape.width * a_layer + predicted * vocab * KEPT_LOGITS)


def recomputed_floats(shape: Shape, *, vocab: int, samples: int, a_layer: float, predicted: float = 1.0) -> float:
    """Estimate how many floats are kept if the backward pass recomputes layers.

    These are the input of every layer, all values of one layer, and the logits.
    """
    return samples * shape.context * (shape.width * (shape.layers + a_layer) + predicted * vocab * KEPT_LOGITS)


def operations(shape: Shape, *, vocab: int, samples: int, predicted: float = 1.0) -> float:
    """Estimate floating-point operations: 6 per weight and token, plus attention (arXiv 2001.08361, section 2.1)."""
    matrices = 12 * shape.layers * shape.width**2 + predicted * vocab * shape.width
    return 6.0 * samples * shape.context * (matrices + 2 * shape.layers * shape.context * shape.width)


def even_heads(shape: Shape) -> Rule:
    """Return the rule that the width must be a multiple of the number of heads."""
    uneven = f"width {shape.width} is not a multiple of heads {shape.heads}"
    return Rule("model.width", uneven, shape.width % shape.heads != 0)
