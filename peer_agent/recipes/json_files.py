"""JSON beside a model, for libraries and people."""

import json
from pathlib import Path


def write_json(path: Path, content: object) -> None:
    """Readable JSON, the same bytes each time."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
