"""Examples of every shape that other programs rely on, read by the tests of all languages."""

import json
import tarfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def golden(name: str) -> Any:
    """A golden file's content."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def version_1(folder: Path) -> Any:
    """Unpack what version 1 left on disks, and what is known of it.

    Written by the code of version 1 (`made_with.py` in there): `home` of an agent that was killed, `relay` with a log
    of three entries, `committed` with the four that the site had.
    """
    with tarfile.open(FOLDER / "version_1.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return json.loads((folder / "facts.json").read_text())


def shape_of(value: Any) -> Any:
    """Names and kinds of a JSON value; whole and broken numbers are both numbers, nothing may stand for anything."""
    match value:
        case dict():
            return {name: shape_of(part) for name, part in value.items()}
        case list():
            return [shape_of(value[0])] if value else []
        case bool():
            return "truth"
        case int() | float():
            return "number"
    return type(value).__name__
