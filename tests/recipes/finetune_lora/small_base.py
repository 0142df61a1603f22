"""A small base model, packed as a user would supply it: a zip of its transformers folder."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.causal_lm.training import build_model, save_model
from peer_agent.site_work.prepare_text import prepare
from tests.publishing.texts import docstrings

FAMILIES = {
    "llama": Model(family="llama", layers=2, width=32, heads=4, kv_heads=2, context=48),
    "gpt2": Model(family="gpt2", layers=2, width=32, heads=4, context=48),
    "qwen3": Model(family="qwen3", layers=2, width=32, heads=4, context=48),
}


def text_of(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(docstrings()[:60_000])
    return path


def model_folder(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Write a new model with its tokenizer. `changes` go into its config.json."""
    folder.mkdir(exist_ok=True)
    recipe = CausalLM(model=FAMILIES[family], vocab=400, seed=11)
    made = prepare(text_of(folder), folder / "prepared", recipe.preparation())
    recipe = recipe.fitted({"vocab": made.vocab})
    out = folder / "released"
    save_model(recipe, build_model(recipe), folder / "prepared", out)
    change(out / "config.json", changes)
    return out


def change(path: Path, changes: Mapping[str, Any]) -> None:
    """Change values in a JSON file. A value of None removes the key."""
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def zipped(folder: Path, *, inside: str = "model/", without: str = "") -> Path:
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as packed:
        for path in sorted(folder.iterdir()):
            if path.name != without:
                packed.write(path, f"{inside}{path.name}")
    return target
