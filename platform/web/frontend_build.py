"""Which files the front end was built into: reads Vite's manifest, which is there only after a build."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "static" / "built"


class Entry(NamedTuple):
    """Files of one built script, by their names below /static/."""

    script: str
    styles: tuple[str, ...]
    shared: tuple[str, ...] = ()  # what scripts of several pages import: their words


def built_entry(source: str, folder: Path = FOLDER) -> Entry | None:
    """What a source file of `frontend/` was built into, None where it was not."""
    path = folder / "manifest.json"
    try:
        changed_ns = path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return _manifest(path, changed_ns).get(source)


@lru_cache(maxsize=4)
def _manifest(path: Path, changed_ns: int) -> dict[str, Entry]:
    """Read once for every build."""
    del changed_ns
    chunks: dict[str, Any] = json.loads(path.read_bytes())
    return {
        source: Entry(
            f"built/{chunk['file']}",
            tuple(f"built/{name}" for name in chunk.get("css", ())),
            tuple(f"built/{chunks[name]['file']}" for name in chunk.get("imports", ())),
        )
        for source, chunk in chunks.items()
        if chunk.get("isEntry")
    }
