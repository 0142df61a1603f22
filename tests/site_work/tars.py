"""Archives of images, valid and hostile."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from PIL import Image

Colour = tuple[int, int, int]


def png(colour: Colour = (200, 30, 30), *, size: tuple[int, int] = (10, 10), kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, colour).save(content, kind)
    return content.getvalue()


def tar(path: Path, files: Mapping[str, bytes], others: Iterable[tarfile.TarInfo] = (), mode: str = "w") -> Path:
    """Write an archive. `others` holds the entries that are not files."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for other in others:
            archive.addfile(other)
    return path


def entry_of(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry
