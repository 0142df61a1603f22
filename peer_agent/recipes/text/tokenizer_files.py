"""A tokenizer as the files that transformers loads it from."""

import json
from pathlib import Path

from peer_agent.recipes.json_files import write_json

TOKENIZER_FILES = ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json")


def copy_tokenizer(folder: Path, out: Path, *, context: int) -> None:
    """The same files beside a model that takes `context` tokens."""
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (out / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(out / "tokenizer_config.json", {**config, "model_max_length": context})
