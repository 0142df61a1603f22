"""Settings for preparing images as RGB squares of equal size."""

from typing import ClassVar, Literal

from peer_agent.protocol.recipe import Material, Preparation


class ImagePreparation(Preparation, frozen=True, tag="images"):
    """Shards of square RGB images of `side` by `side` pixels, one byte per color channel, and each image's class.

    The shorter side is scaled to `side`, and the longer one is cropped around its center.
    """

    material: ClassVar[Material] = Material(
        "images",
        "images",
        "a zip or tar of images, one folder per class (if there are classes)",
        (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"),
        more="more images",
    )
    beside: ClassVar[Literal["tokenizer", "shards"]] = "shards"
    least_beside: ClassVar[int] = 4096
    module: ClassVar[str] = "peer_agent.site_work.prepare_images"

    side: int
    fewest_classes: int = 2
