"""How images are prepared: all of one size, in red, green and blue."""

from typing import ClassVar, Literal

from peer_agent.protocol.recipe import Material, Preparation


class ImagePreparation(Preparation, frozen=True, tag="images"):
    """Shards of square images of `side` pixels, three bytes each, and the class of each.

    The shorter side of an image is made as long as that, and the middle of the longer one is taken. `fewest_classes`:
    folders without which nothing can be learned.
    """

    material: ClassVar[Material] = Material(
        "images",
        "images",
        "a .tar of images, one folder per class (if there are classes)",
        ("Images of each class", "The largest classes. If something looks wrong, check how the file was packed."),
        (".tar", ".tar.gz", ".tgz"),
        more="more images",
    )
    beside: ClassVar[Literal["tokenizer", "shards"]] = "shards"
    least_beside: ClassVar[int] = 4096
    module: ClassVar[str] = "peer_agent.site_work.prepare_images"

    side: int
    fewest_classes: int = 2
