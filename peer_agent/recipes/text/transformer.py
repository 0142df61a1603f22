"""What is true of every transformer that reads text, whatever its family."""

from typing import Protocol

from peer_agent.protocol.recipe import Rule

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
