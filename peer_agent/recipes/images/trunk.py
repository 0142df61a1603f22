"""A ResNet's shape in plain numbers (arXiv 1512.03385, as built by transformers)."""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

Family = Literal["resnet10", "resnet18", "resnet34", "resnet50"]
DEPTHS: dict[Family, tuple[int, int, int, int]] = {
    "resnet10": (1, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
}
COLOURS = 3
REDUCTION = 4  # factor by which a bottleneck reduces its inner width


class Trunk(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A ResNet without its head. `width`: the number of channels in the first stage. Each further stage doubles it."""

    family: Family = "resnet18"
    width: Annotated[int, Meta(ge=8, le=256)] = 32

    @property
    def title(self) -> str:
        return self.family.replace("resnet", "ResNet-")

    @property
    def has_bottlenecks(self) -> bool:
        """True if each layer has three convolutions instead of two."""
        return self.family == "resnet50"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of output channels in each stage."""
        first = self.width * (REDUCTION if self.has_bottlenecks else 1)
        return tuple(first * 2**stage for stage in range(len(DEPTHS[self.family])))

    @property
    def features(self) -> int:
        """The number of features that the trunk returns for an image."""
        return self.sizes[-1]


class Convolution(NamedTuple):
    """A convolution and the normalization after it. `side`: the side of the square output."""

    kernel: int
    channels_in: int
    channels_out: int
    side: int

    @property
    def parameters(self) -> int:
        """The number of weights in the convolution and its normalization."""
        return self.kernel**2 * self.channels_in * self.channels_out + 2 * self.channels_out

    @property
    def outputs(self) -> int:
        """The number of floats in the output for one image."""
        return self.channels_out * self.side**2


def convolutions_of(trunk: Trunk, side: int) -> Iterator[Convolution]:
    """Yield a trunk's convolutions in order, for images of `side` by `side` pixels."""
    side = _halved(side)
    yield Convolution(7, COLOURS, trunk.width, side)
    side, came = _halved(side), trunk.width
    for stage, (depth, out) in enumerate(zip(DEPTHS[trunk.family], trunk.sizes, strict=True)):
        for layer in range(depth):
            before, side = side, _halved(side) if stage and not layer else side
            if came != out or before != side:
                yield Convolution(1, came, out, side)
            yield from _layer(trunk, came, out, before, side)
            came = out


def _layer(trunk: Trunk, came: int, out: int, before: int, side: int) -> Iterator[Convolution]:
    if not trunk.has_bottlenecks:
        yield Convolution(3, came, out, side)
        yield Convolution(3, out, out, side)
        return
    inside = out // REDUCTION
    yield Convolution(1, came, inside, before)
    yield Convolution(3, inside, inside, side)
    yield Convolution(1, inside, out, side)


def _halved(side: int) -> int:
    return -(-side // 2)
