"""The recipes that people can choose, a package each: what the whole house knows of it and, in `training`, the rest.

Whoever reads recipes takes `parse_recipe` from here, and so knows them all. A recipe of one's own is a module that
registers it, named in MANYHANDS_RECIPES on the site and on every machine: no code travels from the one to the other.
"""

import importlib
import os

from peer_agent.protocol.recipe import KINDS, parse_recipe, recipe_of
from peer_agent.recipes import causal_lm, finetune_lora, image_classification, image_ssl, masked_lm

__all__ = [
    "KINDS",
    "causal_lm",
    "finetune_lora",
    "image_classification",
    "image_ssl",
    "masked_lm",
    "parse_recipe",
    "recipe_of",
]

VARIABLE = "MANYHANDS_RECIPES"  # further modules, parted by commas

for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    importlib.import_module(name.strip())
