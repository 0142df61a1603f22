"""How a text is prepared for a model that is there already: with that model's own tokenizer."""

from typing import ClassVar, Literal

from peer_agent.protocol.recipe import Material, Preparation
from peer_agent.recipes.text.preparation import TextPreparation


class AdaptedText(Preparation, frozen=True, tag="adapted_text"):
    """Shards of the base's tokens; its tokenizer and its parameters lie beside them."""

    material: ClassVar[Material] = TextPreparation.material._replace(
        takes=None,
        file="one file of UTF-8 text, or rows with texts or conversations: JSON lines or Parquet",
        adapts=Material(
            "model",
            "parameters",
            "one zip of a model's folder, with safetensors",
            (
                "The model that is adapted",
                "Bring it next: a release of a run here, a model of the Hub, or one of your own.",
            ),
            (".zip",),
            hub="model",
        ),
    )
    beside: ClassVar[Literal["tokenizer", "shards"]] = "tokenizer"
    module: ClassVar[str] = "peer_agent.site_work.brought_model"
