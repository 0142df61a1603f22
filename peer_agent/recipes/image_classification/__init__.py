"""The recipe for an image classifier trained from scratch: a ResNet and a layer that scores the classes."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from msgspec import Meta
from msgspec.structs import replace

from peer_agent.protocol.recipe import NO_YES, Optimizer, Rule, Words, register
from peer_agent.recipes.images.recipe import LARC, OF_TRUNK, ImageRecipe
from peer_agent.recipes.images.trunk import Trunk

LONGEST_CLASS = 255  # in characters: the longest folder name that common file systems allow
ClassName = Annotated[str, Meta(min_length=1, max_length=LONGEST_CLASS)]


@register
class ImageClassification(ImageRecipe, frozen=True, kw_only=True, tag="image_classification"):
    """A ResNet trained on labeled images. A sample is an image, possibly shifted by a few pixels and mirrored."""

    summaries = (
        "a {trunk} image classifier of width {width}, {side} by {side} pixels, {classes} classes",
        "a {trunk} image classifier of width {width}, {side} by {side} pixels",
    )

    usual_passes = 30  # images differ on each pass, because they are augmented
    title = "Image classifier"
    about = "Learns to identify what is in a picture."
    training = "peer_agent.recipes.image_classification.training"
    task = "image-classification"
    from_data = ("classes",)
    words = (
        *OF_TRUNK,
        Words("side", "side", "Side", "Pixels. Every image is resized to a square of this size."),
        Words(
            "shift", "shift", "Shift", "Images are shifted by up to this fraction of their side, to delay overfitting."
        ),
        Words("flip", "flip", "Mirrored", "Mirror half of the images. Not for letters or digits.", NO_YES),
    )

    optimizer: Optimizer = Optimizer(
        name="sgd", learning_rate=0.1, beta1=0.9, epsilon=1e-8, weight_decay=5e-4, clip_norm=5.0, final_ratio=0.0
    )
    target_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    micro_batch: Annotated[int, Meta(ge=2, le=4096)] = 32
    shift: Annotated[float, Meta(ge=0, le=0.25)] = 0.125
    flip: Literal[0, 1] = 0
    classes: Annotated[tuple[ClassName, ...], Meta(max_length=10_000)] = ()  # set from the data

    def parameters(self) -> int:
        trunk = sum(layer.parameters for layer in self.layers())
        return trunk + (self.trunk.features + 1) * max(len(self.classes), 1)

    def kept_floats(self, samples: int) -> float:
        return samples * self.kept_of(self.side)

    def rules(self) -> Iterable[Rule]:
        """Require micro-batches of at least two images, because a single image's batch statistics are meaningless."""
        yield Rule("micro_batch", "a micro batch of images has 2 of them or more", self.micro_batch < 2)

    def fitted(self, data: Mapping[str, Any]) -> Self:
        return replace(self, classes=tuple(data["classes"]))

    def usage(self, model: str) -> str:
        return (
            "from transformers import pipeline\n"
            f'name = pipeline("image-classification", model={model})\n'
            'print(name("an-image.png")[0]["label"])'
        )

    def summary(self) -> str:
        trunk, side = self.trunk, self.side
        return self.summaries[not self.classes].format(
            trunk=trunk.title, width=trunk.width, side=side, classes=f"{len(self.classes):,}"
        )


SMALL = ImageClassification()
RESNET50 = ImageClassification(
    trunk=Trunk(family="resnet50", width=64),
    optimizer=replace(LARC, weight_decay=1e-4, final_ratio=0.0),
    side=224,
    flip=1,
    target_batch=4096,
    micro_batch=32,
    target_steps=30_000,
    snapshot_every=100,
)
ImageClassification.presets = {"ResNet-18, small images": SMALL, "ResNet-50": RESNET50}
