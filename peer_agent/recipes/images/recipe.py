"""What recipes that learn from images have in common: samples of one size, computed a whole unit at a time."""

from typing import Annotated, ClassVar

from msgspec import Meta

from peer_agent.protocol.recipe import Optimizer, Preparation, Recipe, Words
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.trunk import COLOURS, Convolution, Trunk, convolutions_of

HEADER_BYTES, LABEL_BYTES = 64 * 1024, 2
# Floats of a forward and a backward pass, for each that a convolution gives: measured with torch 2.13 on a CPU.
KEPT, KEPT_OF_BOTTLENECKS = 3.6, 2.6


OF_TRUNK = (
    Words("family", "trunk.family", "Family", "ResNet-18 suits small images and laptops; ResNet-50 needs a GPU."),
    Words("width", "trunk.width", "Width", "Channels of the first stage; 64 is usual."),
)
LARC = Optimizer(name="larc", learning_rate=2.4, beta1=0.9, epsilon=1e-8, clip_norm=0.0, warmup_steps=500)  # as SwAV's


class ImageRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe whose data are images, and whose model normalizes by the statistics of a batch.

    Those are of a unit, wherever it is computed: so each but a small shard's only one has `micro_batch` samples.
    """

    prepares: ClassVar[type[Preparation]] = ImagePreparation
    unit_is_whole: ClassVar[bool] = True
    largest: ClassVar[str] = "trunk.width"
    loss_unit: ClassVar[tuple[str, str]] = ("image", "images")

    trunk: Trunk = Trunk()
    side: Annotated[int, Meta(ge=8, le=512)] = 32  # pixels

    def samples_in(self, size: int) -> int:
        """Of a shard of so many images. What would be a smaller unit is left out: one image has no statistics."""
        if size < self.micro_batch:
            return size if size >= 2 else 0
        return size - size % self.micro_batch

    def kept_of(self, side: int) -> float:
        """Floats that an image of `side` pixels takes, within the trunk, until its gradient is there."""
        kept = KEPT_OF_BOTTLENECKS if self.trunk.has_bottlenecks else KEPT
        return kept * sum(layer.outputs for layer in convolutions_of(self.trunk, side))

    def layers(self) -> list[Convolution]:
        """The trunk's."""
        return list(convolutions_of(self.trunk, self.side))

    def least_size(self) -> int:
        """Two images: one has no statistics."""
        return 2

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Each image is one."""
        return samples, samples

    def preparation(self) -> ImagePreparation:
        """At the size that the model takes."""
        return ImagePreparation(self.side)

    def shard_bytes(self, size: int) -> int:
        """Of a shard of so many images, at most."""
        return HEADER_BYTES + size * (COLOURS * self.side**2 + LABEL_BYTES)
