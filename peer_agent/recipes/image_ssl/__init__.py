"""The recipe for SwAV (arXiv 2006.09882): a ResNet learns what crops of the same unlabeled image have in common."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from peer_agent.protocol.recipe import Optimizer, Rule, Words, register
from peer_agent.recipes.images.crops import Looks, Part
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.recipe import LARC, OF_TRUNK, ImageRecipe
from peer_agent.recipes.images.trunk import Trunk

LARGE = 2  # large crops per image; the image's other crops predict their assignments to prototypes


class Multicrop(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of an image's crops: two large ones, and `small` small ones.

    Sides are in pixels. `least` and `most` limit a crop's area, as a fraction of the image's area.
    """

    large_side: Annotated[int, Meta(ge=8, le=512)] = 32
    large_least: Part = 0.3
    large_most: Part = 1.0
    small: Annotated[int, Meta(ge=0, le=16)] = 4
    small_side: Annotated[int, Meta(ge=8, le=512)] = 16
    small_least: Part = 0.08
    small_most: Part = 0.3

    @property
    def count(self) -> int:
        return LARGE + self.small


@register
class ImageSSL(ImageRecipe, frozen=True, kw_only=True, tag="image_ssl"):
    """The recipe for a ResNet with a two-layer head and prototypes, trained with SwAV.

    A sample is one image, seen as several crops. The images of a unit are assigned to prototypes together, so
    `micro_batch` affects what the model learns. Schedules depend only on committed steps, and no unit needs an earlier
    unit's result (rule 33).
    """

    summaries = (
        (
            "a {trunk} trunk of width {width} that learns without labels (SwAV), {side} by {side} pixels, "
            "{prototypes} prototypes"
        ),
    )

    usual_passes = 100  # crops differ on each pass (arXiv 2006.09882, section 4)
    title = "Images without labels"
    about = "Learns from unlabelled pictures (SwAV). For researchers."
    training = "peer_agent.recipes.image_ssl.training"
    task = "image-feature-extraction"
    loss_unit: ClassVar[tuple[str, str]] = ("pair of crops", "pairs of crops")
    unit_rows: ClassVar[tuple[str, ...]] = ("prototypes.weight",)
    words = (
        *OF_TRUNK,
        Words("side", "side", "Side", "Pixels. Every image is resized to a square of this size, then cropped."),
        Words("large_side", "crops.large_side", "Large crops", "Pixels. Side of the two large crops."),
        Words("large_least", "crops.large_least", "Large: least", "Smallest fraction of an image that a crop shows."),
        Words("large_most", "crops.large_most", "Large: most", "Largest fraction."),
        Words("small", "crops.small", "Small crops", "Number of small crops per image."),
        Words("small_side", "crops.small_side", "Small: side", "Pixels."),
        Words("small_least", "crops.small_least", "Small: least", "Smallest fraction of an image that a crop shows."),
        Words("small_most", "crops.small_most", "Small: most", "Largest fraction."),
        Words("flip", "looks.flip", "Mirrored", "Probability that a crop is mirrored. 0 for letters or digits."),
        Words("jitter", "looks.jitter", "Colours", "Probability that brightness, contrast, saturation and hue change."),
        Words("strength", "looks.strength", "Colours: strength", "0.8 is usual, 0.4 for images without colour."),
        Words("grey", "looks.grey", "Grey", "Probability that a crop is grey."),
        Words("blur", "looks.blur", "Blurred", "Probability that a crop is blurred. Hardly visible on small images."),
        Words("hidden", "hidden", "Hidden width", "Width of the two layers after the trunk."),
        Words("projection", "projection", "Projection", "Size of the vectors that are compared."),
        Words("prototypes", "prototypes", "Prototypes", "Number of directions that images are assigned to."),
        Words("temperature", "temperature", "Temperature", "0.1 is usual."),
        Words("sharpness", "sharpness", "Assignment epsilon", "0.05 or 0.03. Smaller values make assignments harder."),
        Words("sinkhorn_steps", "sinkhorn_steps", "Sinkhorn steps", "Iterations of the assignment; 3 is usual."),
        Words("frozen_steps", "frozen_steps", "Frozen steps", "Steps at the start during which prototypes stay fixed."),
        Words(
            "queue", "queue", "Queue",
            "Extra images that only take part in the assignment, for units with fewer images than prototypes. "
                "Each costs a forward pass.",
        ),
        Words("queue_from", "queue_from", "Queue start", "Step at which the queue starts."),
    )  # fmt: skip

    optimizer: Optimizer = replace(LARC, weight_decay=1e-6, warmup_steps=10, final_ratio=0.002)
    target_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    micro_batch: Annotated[int, Meta(ge=2, le=4096)] = 64
    crops: Multicrop = Multicrop()
    looks: Looks = Looks()
    hidden: Annotated[int, Meta(ge=8, le=16_384)] = 256
    projection: Annotated[int, Meta(ge=8, le=2048)] = 64
    prototypes: Annotated[int, Meta(ge=2, le=100_000)] = 60
    temperature: Annotated[float, Meta(ge=0.01, le=1)] = 0.1
    sharpness: Annotated[float, Meta(ge=0.01, le=1)] = 0.05
    sinkhorn_steps: Annotated[int, Meta(ge=1, le=20)] = 3
    frozen_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    queue: Annotated[int, Meta(ge=0, le=64)] = 0
    queue_from: Annotated[int, Meta(ge=0, le=10_000_000)] = 0

    def at(self, step: int) -> Self:
        """Return the recipe to use at a step. Before step `queue_from`, this is the same recipe without its queue."""
        return replace(self, queue=0) if self.queue and step < self.queue_from else self

    def frozen(self, step: int) -> tuple[str, ...]:
        """Return the names of the parameters frozen at a step: the prototypes, in the first `frozen_steps` steps."""
        return self.unit_rows if step < self.frozen_steps else ()

    def preparation(self) -> ImagePreparation:
        return ImagePreparation(self.side, fewest_classes=1)

    def parameters(self) -> int:
        trunk = sum(layer.parameters for layer in self.layers())
        head = (self.trunk.features + 2) * self.hidden + (self.hidden + 1) * self.projection
        return trunk + head + self.projection * self.prototypes

    def kept_floats(self, samples: int) -> float:
        crops = LARGE * self.kept_of(self.crops.large_side) + self.crops.small * self.kept_of(self.crops.small_side)
        behind = 3 * self.hidden + 2 * self.projection + 2 * self.prototypes
        return samples * (crops + self.crops.count * behind)

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Return the number of pairs of a large crop and another crop of the same image.

        It is both minimum and maximum.
        """
        pairs = samples * LARGE * (self.crops.count - 1)
        return pairs, pairs

    def rules(self) -> Iterable[Rule]:
        for name in ("large", "small"):
            least, most = (getattr(self.crops, f"{name}_{end}") for end in ("least", "most"))
            yield Rule(f"crops.{name}_most", f"the most of {name} crops is below their least", most < least)

    def usage(self, model: str) -> str:
        return (
            "from transformers import pipeline\n"
            f'features = pipeline("image-feature-extraction", model={model}, pool=True)\n'
            'print(len(features("an-image.png")[0]))'
        )

    def summary(self) -> str:
        trunk, side = self.trunk, self.crops.large_side
        return self.summaries[0].format(
            trunk=trunk.title, width=trunk.width, side=side, prototypes=f"{self.prototypes:,}"
        )


SMALL = ImageSSL(frozen_steps=20)
PAPER = ImageSSL(
    trunk=Trunk(family="resnet50", width=64),
    side=256,
    crops=Multicrop(
        large_side=224, large_least=0.14, large_most=1.0, small=6, small_side=96, small_least=0.05, small_most=0.14
    ),
    hidden=2048,
    projection=128,
    prototypes=3000,
    sharpness=0.03,
    frozen_steps=40,  # one epoch of ImageNet
    optimizer=replace(LARC, weight_decay=1e-6, final_ratio=0.002),
    target_batch=32_768,
    micro_batch=64,
    target_steps=5000,
    snapshot_every=100,
)
ImageSSL.presets = {"SwAV, small images": SMALL, "SwAV, ResNet-50 (paper)": PAPER}
