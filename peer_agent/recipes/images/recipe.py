"""The base class of the image recipes. All samples are the same size, and each unit is computed as one batch."""

from typing import Annotated, ClassVar

from msgspec import Meta

from peer_agent.protocol.recipe import Optimizer, Preparation, Recipe, Words
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.trunk import COLOURS, Convolution, Trunk, convolutions_of

HEADER_BYTES, LABEL_BYTES = 64 * 1024, 2
# Floats kept for the backward pass, per float of a convolution's output. Measured with torch 2.13 on a CPU.
KEPT, KEPT_OF_BOTTLENECKS = 3.6, 2.6


OF_TRUNK = (
    Words("family", "trunk.family", "Family", "ResNet-18 suits small images and laptops; ResNet-50 needs a GPU."),
    Words("width", "trunk.width", "Width", "Channels of the first stage; 64 is usual."),
)
LARC = Optimizer(name="larc", learning_rate=2.4, beta1=0.9, epsilon=1e-8, clip_norm=0.0, warmup_steps=500)  # as in SwAV


class ImageRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe for images. The model normalizes by batch statistics, so every machine computes a whole unit as one
    batch. Every unit has `micro_batch` samples, except in a small shard, which forms a single smaller unit.
    """

    prepares: ClassVar[type[Preparation]] = ImagePreparation
    unit_is_whole: ClassVar[bool] = True
    largest: ClassVar[str] = "trunk.width"
    loss_unit: ClassVar[tuple[str, str]] = ("image", "images")

    trunk: Trunk = Trunk()
    side: Annotated[int, Meta(ge=8, le=512)] = 32  # pixels

    def samples_in(self, size: int) -> int:
        """Return how many of a shard's samples are used: as many as fill whole units.

        A shard with fewer samples than a unit forms one smaller unit, if it has at least two samples.
        """
        if size < self.micro_batch:
            return size if size >= 2 else 0
        return size - size % self.micro_batch

    def kept_of(self, side: int) -> float:
        """Return how many floats the trunk keeps for the backward pass of one image of `side` by `side` pixels."""
        kept = KEPT_OF_BOTTLENECKS if self.trunk.has_bottlenecks else KEPT
        return kept * sum(layer.outputs for layer in convolutions_of(self.trunk, side))

    def layers(self) -> list[Convolution]:
        return list(convolutions_of(self.trunk, self.side))

    def least_size(self) -> int:
        """Return 2, because batch statistics need two images."""
        return 2

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        return samples, samples

    def preparation(self) -> ImagePreparation:
        return ImagePreparation(self.side)

    def shard_bytes(self, size: int) -> int:
        return HEADER_BYTES + size * (COLOURS * self.side**2 + LABEL_BYTES)
