"""The texts that a run mixes: its first one and further ones, in the order of the recipe's weights.

Texts come and go while the run is a draft. Weights change at any time; every record of the log says by which of them
its samples were dealt.
"""

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from msgspec.structs import replace

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import MOST_SOURCES, Material, Recipe, checked, encode_recipe
from runs.datasets.batches import require_suited
from runs.datasets.services import prepare_anew
from runs.datasets.sources import source_lines
from runs.lifecycle.drafts import forget_text, require_draft
from runs.lifecycle.ending import ending_word
from runs.models import Dataset, Run
from runs.states import EXTENDABLE
from runs.timeline import add_action, quoted

USUAL_WEIGHT = 1.0  # of a text that comes to others which have weights


def require_base(run: Run, filename: str, on_hub: str = "") -> Material:
    """A file of this name, here or on the Hub, may be the model that a draft adapts, or a tokenizer of its text.

    What it is to be. Raises Problem E377, E392.
    """
    wanted = run.parsed_recipe.material.brought
    if wanted is None:
        raise Problem.of("E392")
    if not (on_hub == wanted.hub if on_hub else filename.lower().endswith(wanted.suffixes)):
        raise Problem.of("E377", name=filename, file=wanted.file)
    return wanted


@transaction.atomic
def set_base(*, run: Run, base: Dataset, by: Person | None = None) -> None:
    """What a draft adapts, or a tokenizer, in the place of another one; the text is cut by it.

    Raises Problem E315, E377, E392.
    """
    draft = require_draft(run)
    wanted = require_base(draft, base.filename, base.on_hub)
    _put_base(draft, base)
    what = f"the {wanted.name} {quoted(base.filename)}"
    add_action(run=run, kind="edited", deed=f"brought {what}.", by=by)
    run.refresh_from_db()


@transaction.atomic
def remove_base(*, run: Run, by: Person | None = None) -> None:
    """Take what was brought off a draft again: a tokenizer learns from the text then. Raises Problem E315."""
    draft = require_draft(run)
    if (before := draft.dataset.base) is None:
        return
    _put_base(draft, None)
    add_action(run=run, kind="edited", deed=f"took {quoted(before.filename)} off.", by=by)
    run.refresh_from_db()


def _put_base(draft: Run, base: Dataset | None) -> None:
    before, recipe = draft.dataset.base, draft.parsed_recipe
    Dataset.objects.filter(pk=draft.dataset_id).update(base=base)
    draft.dataset.base = base
    if before is not None:
        forget_text(before)
    _change(draft, recipe)


def require_source(run: Run, filename: str, on_hub: str = "") -> None:
    """A further file of this name, here or on the Hub, may become a source of a draft. Raises E377, E385."""
    if len(run.dataset.sources()) >= MOST_SOURCES:
        raise Problem.of("E385", most=MOST_SOURCES)
    require_suited(run.parsed_recipe, filename, on_hub)


@transaction.atomic
def add_source(*, run: Run, source: Dataset, by: Person | None = None) -> None:
    """A further text of a draft; all of them are prepared again, with one tokenizer. Raises E315, E377, E385."""
    draft = require_draft(run)
    require_source(draft, source.filename, source.on_hub)
    recipe = draft.parsed_recipe
    Dataset.objects.filter(pk=source.pk).update(first=draft.dataset)
    _change(draft, replace(recipe, mix=(*recipe.mix, USUAL_WEIGHT) if recipe.mix else ()))
    add_action(run=run, kind="edited", deed=f"added {quoted(source.filename)}.", by=by)
    run.refresh_from_db()


@transaction.atomic
def remove_source(*, run: Run, source: UUID, by: Person | None = None) -> None:
    """Take a further text off a draft again; one that is gone already is nothing. Raises Problem E315."""
    draft = require_draft(run)
    sources, recipe = draft.dataset.sources(), draft.parsed_recipe
    place = next((place for place, each in enumerate(sources) if place and each.pk == source), None)
    if place is None:
        return
    forget_text(sources[place])
    mix = tuple(weight for at, weight in enumerate(recipe.mix) if at != place)
    _change(draft, replace(recipe, mix=mix if len(mix) > 1 and any(mix) else ()))
    add_action(run=run, kind="edited", deed=f"took {quoted(sources[place].filename)} off.", by=by)
    run.refresh_from_db()


def _change(draft: Run, recipe: Recipe) -> None:
    Run.objects.filter(pk=draft.pk).update(recipe=encode_recipe(recipe).decode(), waiting_for="")
    prepare_anew(draft.dataset, recipe)


@transaction.atomic
def mix_sources(*, run: Run, weights: Sequence[float], by: Person | None = None) -> None:
    """From now on samples are dealt by these weights, a number for each text; of a draft also by size, with none.

    The run's host tells the coordinator within a second. Raises Problem E301, E315, E386.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state != Run.State.DRAFT and (now.state not in EXTENDABLE or now.wanted == Run.Wanted.FINISHED):
        raise Problem.of("E315", state=ending_word(now))
    sources = now.dataset.sources()
    is_by_size = not weights and now.state == Run.State.DRAFT
    if len(weights) != len(sources) and not is_by_size:
        raise Problem.of("E386", weights=len(weights), files=len(sources))
    recipe = now.parsed_recipe
    mixed = checked(replace(recipe, mix=tuple(weights)))
    if mixed.mix == recipe.mix:
        return
    Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(mixed).decode())
    run.refresh_from_db()
    named = recipe.material.named(len(sources))
    told = ", ".join(f"{line.percent} of {quoted(line.dataset.filename)}" for line in source_lines(run))
    add_action(run=run, kind="mixed", deed=f"mixes the {named} anew: {told}.", by=by)


def state_weights(run: Run) -> None:
    """Before a run opens: texts that are mixed by their sizes get weights: none could be changed while it goes."""
    lines, recipe = source_lines(run), run.parsed_recipe
    if len(lines) > 1 and not recipe.mix:
        weights = tuple(round(line.share, 6) for line in lines)
        stated = encode_recipe(replace(recipe, mix=weights)).decode()
        Run.objects.filter(pk=run.pk, state=Run.State.PREPARING).update(recipe=stated)
