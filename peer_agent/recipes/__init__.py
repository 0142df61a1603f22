"""The recipes that people can choose. Each is a package, and only its `training` module needs torch. Import
`parse_recipe` from here, so that all recipes are registered. The environment variable MANYHANDS_RECIPES lists further
modules with recipes. Install these on the site and on every machine, because code is never sent between machines.
"""

import importlib
import os

from peer_agent.protocol.recipe import KINDS, parse_recipe, recipe_of
from peer_agent.recipes import causal_lm, finetune_lora, image_classification, image_ssl, masked_lm

VARIABLE = "MANYHANDS_RECIPES"  # names of further modules, separated by commas

for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    importlib.import_module(name.strip())
