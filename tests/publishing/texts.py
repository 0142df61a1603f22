"""Texts for tests: English text that every machine has."""

from pathlib import Path
from pydoc_data.topics import topics


def docstrings() -> str:
    """Return Python's own help, about 470 kB of English."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
