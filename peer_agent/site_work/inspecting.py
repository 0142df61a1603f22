"""Judges files without a run or a site, by preparing them in a temporary folder."""

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import KINDS, Recipe, recipe_of
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.site_work.intake.unpack import members_of
from peer_agent.site_work.intake.verdict import Verdict
from peer_agent.site_work.prepare_images import SUFFIXES

MANY_IMAGES = 0.2  # least share of images among an image archive's files, which may include others
LOOKED_AT = 200  # most files examined to recognize the kind of data
IMAGES, TEXTS = "image_classification", "causal_lm"


def inspect(files: Sequence[Path], recipe: str = "", fields: Sequence[str] = ()) -> Verdict:
    """Return the verdict on files, as if they were the sources of a run.

    If the preparation refuses the files, the verdict contains a refusal. `recipe`: the name of a recipe. If it is
    empty, the data determines the recipe. Raises Problem E301 if there is no recipe with this name.
    """
    kind = _recipe(recipe or _kind_of(files[0]))
    preparation: Any = kind.preparation()
    if not isinstance(preparation, (ImagePreparation, TextPreparation)):
        preparation = TextPreparation(recipe_of({}).vocab)  # type: ignore[attr-defined] # no model to adapt is given
    prepare = importlib.import_module(preparation.module).prepare
    names = [path.name for path in files]
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = prepare(files[0], Path(folder) / "out", preparation, files[1:], names=names, fields=fields)
        except Problem as problem:
            refused = Verdict()
            refused.refuse(problem.fault)
            return refused
    verdict: Verdict = made.verdict
    if made.size < kind.least_size():
        unit, least = kind.material.unit, kind.least_size()
        verdict.refuse(Fault.of("E317", size=f"{made.size:,}", unit=unit, least=f"{least:,}"))
    return verdict


def _recipe(name: str) -> Recipe:
    if name not in KINDS:
        raise Problem.of("E301", reason=f"there is no recipe {name[:40]!r}; there are {', '.join(sorted(KINDS))}")
    return recipe_of({"objective": name})


def _kind_of(path: Path) -> str:
    """Return the name of the recipe that suits a file or folder.

    It is a recipe for images if enough of the files are images, otherwise one for texts.
    """
    images = others = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for member in members_of(path, path.name, Verdict(), Path(folder) / "unpacked"):
                is_image = member.name.lower().endswith((*SUFFIXES, ".heic", ".heif", ".avif"))
                images, others = images + is_image, others + (not is_image)
                if images + others >= LOOKED_AT:
                    break
        except Problem:
            pass
    return IMAGES if images >= MANY_IMAGES * (images + others) and images else TEXTS
