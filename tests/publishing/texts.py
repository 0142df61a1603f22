"""Texts for the tests: English that every machine has."""

from pathlib import Path
from pydoc_data.topics import topics


def docstrings() -> str:
    """About 470 kB of English: Python's own help."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def written(folder: Path, content: str | bytes) -> Path:
    """A file with this content."""
    path = folder / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
