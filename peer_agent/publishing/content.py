"""Files that are named by what they hold."""

import hashlib
from pathlib import Path


def write_content(content: bytes, folder: Path) -> str:
    """Write `<sha256>.safetensors` in a folder; the sha256 in hexadecimal."""
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"{digest}.safetensors").write_bytes(content)
    return digest
