"""How transformers is to make an image what the model has learned from."""

from pathlib import Path

from peer_agent.recipes.images.recipe import ImageRecipe
from peer_agent.recipes.images.trunk import COLOURS
from peer_agent.recipes.json_files import write_json

PREPROCESSING = "preprocessor_config.json"
BICUBIC = 3  # of Pillow's filters


def write_preprocessing(recipe: ImageRecipe, out: Path) -> None:
    """As the site prepares images: the shorter side, its middle, from -1 to 1."""
    middle = [0.5] * COLOURS
    write_json(
        out / PREPROCESSING,
        {
            "image_processor_type": "CLIPImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": recipe.side},
            "resample": BICUBIC,
            "do_center_crop": True,
            "crop_size": {"height": recipe.side, "width": recipe.side},
            "do_convert_rgb": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": middle,
            "image_std": middle,
        },
    )
