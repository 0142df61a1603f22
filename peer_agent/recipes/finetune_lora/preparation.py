"""Prepares a text for an existing model, using the model's own tokenizer."""

from typing import ClassVar, Literal

from peer_agent.protocol.recipe import Material, Preparation
from peer_agent.recipes.text.preparation import TextPreparation


class AdaptedText(Preparation, frozen=True, tag="adapted_text"):
    """Shards of text in the base model's tokens, stored next to its tokenizer and parameters."""

    material: ClassVar[Material] = TextPreparation.material._replace(
        takes=None,
        file="a text file, CSV, JSON, JSON Lines, Parquet or Arrow with texts or conversations, alone or packed",
        adapts=Material(
            "model",
            "parameters",
            "a .zip of a model's folder, with safetensors",
            (".zip",),
            hub="model",
            shown=("The base model", "Add it next: a release from this site, a model on the Hub, or your own."),
        ),
    )
    beside: ClassVar[Literal["tokenizer", "shards"]] = "tokenizer"
    module: ClassVar[str] = "peer_agent.site_work.brought_model"
