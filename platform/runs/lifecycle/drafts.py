"""Changes that an organizer makes to a run.

The title, purpose and visibility can change at any time; the recipe and the text only while it is a draft. A run
without committed steps can become a draft again.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F
from msgspec.structs import replace

from accounts.models import Person
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import MOST_SOURCES, Material, Recipe, checked, encode_recipe
from runs import quotas, storage
from runs.datasets.services import (
    preparation_of,
    prepare_anew,
    require_batch,
    require_data,
    require_suited,
    source_lines,
    with_data,
    with_usual_steps,
)
from runs.lifecycle.membership import keep_helpers
from runs.models import Dataset, Head, Run
from runs.snapshots.retention import ASKED_FOR_S
from runs.states import EXTENDABLE, LIVE, NOT_OPEN, Why, ending_word, move
from runs.timeline import add_action, quoted

VISIBILITY = {
    Run.Visibility.PUBLIC: "public",
    Run.Visibility.UNLISTED: "unlisted: seen by whoever knows the address",
    Run.Visibility.PRIVATE: "by invitation",
    Run.Visibility.REQUEST: "by request: seen by everybody, for members to train",
}


@transaction.atomic
def change_words(*, run: Run, title: str, purpose: str, by: Person | None = None, role: Run.Role | None = None) -> None:
    """Change the title and purpose. The address stays the same.

    `by` is the person acting, by default the organizer. `role` is the role in which they act, by default their current
    one.
    """
    renamed = f" It is called {quoted(title)} now." if run.title != title else ""
    if not _changed(run, title=title, purpose=purpose):
        return
    add_action(run=run, kind="edited", action=f"changed the description.{renamed}", by=by, role=role)


def _changed(run: Run, **values: Any) -> bool:
    """Write the values to the run. If it already has them all, write nothing and return False."""
    if all(getattr(run, name) == value for name, value in values.items()):
        return False
    for name, value in values.items():
        setattr(run, name, value)
    run.save(update_fields=list(values))
    return True


@transaction.atomic
def change_prompts(*, run: Run, prompts: str, by: Person | None = None) -> None:
    """Change the prompts for the text samples that the model writes at each snapshot."""
    if _changed(run, prompts=prompts):
        add_action(run=run, kind="edited", action="changed the prompts.", by=by)


@transaction.atomic
def announce(*, run: Run, text: str, by: Person | None = None) -> None:
    """Set the announcement shown on the run's page and in its activity. An empty string removes it."""
    if _changed(run, announcement=text):
        action = f"announced {quoted(text)}" if text else "removed the announcement."
        add_action(run=run, kind="announced", action=action, by=by, is_internal=not text)


@transaction.atomic
def warn_below(*, run: Run, machines: int | None, by: Person | None = None) -> None:
    """Set the number of training machines below which the run's managers are alerted. None turns the alert off."""
    if not _changed(run, least_machines=machines):
        return
    action = (
        f"set an alert for fewer than {machines:,} machines." if machines else "turned off the alert for few machines."
    )
    add_action(run=run, kind="edited", action=action, by=by, is_internal=True)


@transaction.atomic
def schedule(*, run: Run, starts_at: datetime | None, by: Person | None = None) -> None:
    """Set the time before which machines get no work, or None to start at once.

    The run's host notices the change within a second. Raises Problem E315 if the run has made a step or is ending.
    """
    now = Run.objects.select_for_update().select_related("head").get(pk=run.pk)
    if not can_schedule(now):
        raise Problem.of("E315", state="under way" if now.head.index else ending_word(now))
    if _changed(run, starts_at=starts_at):
        action = f"set the start to {start_words(starts_at)}." if starts_at else "removed the start time."
        add_action(run=run, kind="edited", action=action, by=by)


def can_schedule(run: Run) -> bool:
    """Return True if the run's start time can still be changed, because the run has completed no step."""
    return run.state in (*NOT_OPEN, *LIVE) and run.head.index == 0


def start_words(at: datetime) -> str:
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


@transaction.atomic
def gather(*, run: Run, people: int | None, chat: str, by: Person | None = None) -> None:
    """Set how many people the organizer hopes for (or None), and the http(s) address of the run's chat (or "")."""
    if _changed(run, people_goal=people, chat_url=chat):
        add_action(run=run, kind="edited", action="changed the goal or the chat link.", by=by, is_internal=True)


@transaction.atomic
def change_visibility(
    *, run: Run, visibility: Run.Visibility, by: Person | None = None, role: Run.Role | None = None
) -> None:
    """Change who may see the run and take part. If the run becomes members-only, past contributors become members."""
    if not _changed(run, visibility=visibility):
        return
    if run.members_only:
        keep_helpers(run)
    if visibility != Run.Visibility.REQUEST:
        run.join_requests.all().delete()
    add_action(run=run, kind="edited", text=f"The run is {VISIBILITY[visibility]} now.", by=by, role=role)


@transaction.atomic
def change_draft(
    *,
    run: Run,
    recipe: Recipe,
    licence: str,
    dataset: Dataset | None = None,
    automatic_steps: bool = False,
    by: Person | None = None,
) -> None:
    """Change a draft's recipe, licence or first text.

    Raises Problem E315 if the run is not a draft, E301 if the recipe is out of bounds, and E366 if its model is too
    large. Raises E307 or E317 if there is too little data, and E377 if a text is the wrong kind of file.
    """
    draft = require_draft(run)
    checked(recipe)
    quotas.require_model(run.organizer, recipe)
    text, further = dataset or draft.dataset, list(draft.dataset.further.all())
    # A token or an image takes at least one byte.
    require_batch(recipe, size=text.size + sum(each.size for each in further))
    require_suited(recipe, text.filename, text.on_hub)
    for each in further:
        require_suited(recipe, each.filename, each.on_hub)
    old = draft.parsed_recipe
    recipe = replace(recipe, mix=old.mix)
    is_same = type(recipe) is type(old) and preparation_of(recipe) == text.preparation
    is_known = is_same and text.state != Dataset.State.FAILED
    if is_known:
        recipe = checked(replace(recipe, **{name: getattr(old, name) for name in recipe.from_data}))
    if is_known and text.state == Dataset.State.READY:
        require_data(recipe, text)
        recipe = with_usual_steps(recipe, text) if automatic_steps else recipe
    Dataset.objects.filter(pk=text.pk).update(licence=licence)
    Run.objects.filter(pk=run.pk).update(
        recipe=encode_recipe(recipe).decode(), automatic_steps=automatic_steps, dataset=text, waiting_for=""
    )
    brought = recipe.material.brought
    _hand_over(draft.dataset, text, keeps=brought is not None and brought == old.material.brought)
    if dataset is not None:
        forget_text(draft.dataset)
    if not is_known:
        prepare_anew(text, recipe)
    if dataset is not None or encode_recipe(recipe).decode() != draft.recipe:
        add_action(run=run, kind="edited", action=f"changed the {'text' if dataset else 'recipe'}.", by=by)
    run.refresh_from_db()


def _hand_over(before: Dataset, text: Dataset, *, keeps: bool) -> None:
    """Attach a draft's additional texts to its new first text.

    If `keeps` is set, the recipe still uses the base model or tokenizer, so attach that too. Otherwise, delete it.
    """
    base = before.base
    if text != before:
        before.further.update(first=text)
    before.base = None
    text.base = base if keeps else None
    for each in (before, text):
        each.save(update_fields=["base"])
    if base is not None and not keeps:
        forget_text(base)


@transaction.atomic
def delete_draft(*, run: Run) -> None:
    """Delete a draft, and its text unless another run uses it. Raises Problem E315 if the run is not a draft."""
    draft = require_draft(run)
    Head.objects.filter(run=draft).delete()
    dataset = draft.dataset
    draft.delete()
    forget_text(dataset)


@transaction.atomic
def take_back(*, run: Run, by: Person | None = None) -> None:
    """Turn an open run without committed steps back into a draft.

    Raising the head's fence makes any commit in progress fail. The host disconnects the machines within two seconds.
    Raises Problem E315 if the run is not open or paused, and E323 if it has made a step.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state not in LIVE:
        raise Problem.of("E315", state=now.state)
    if not Head.objects.filter(run=run, index=0).update(fence=F("fence") + 1, owner="", claim_expires=None):
        raise Problem.of("E323")
    now.snapshots.all().delete()
    now.marks.all().delete()
    now.coverage.all().delete()
    move(run, Why.TAKEN_BACK, waiting_for="", opened_at=None, elements=0)
    add_action(run=run, kind="taken back", action="returned the run to a draft.", by=by)
    transaction.on_commit(partial(shutil.rmtree, storage.snapshots_folder(run), ignore_errors=True))
    queue.put(Kind.THIN_SNAPSHOTS, run.pk, after_s=ASKED_FOR_S + 1)  # deletes them from the bucket


@contextmanager
def used_or_gone(text: Dataset | None) -> Iterator[None]:
    """Run the block in one transaction. If it fails, delete `text`, which the caller has just stored for it."""
    try:
        with transaction.atomic():
            yield
    except BaseException:
        if text is not None:
            forget_text(text)
        raise


def forget_text(dataset: Dataset) -> None:
    """Delete a text with its additional texts and base model, unless a run uses it. Files are deleted on commit."""
    if dataset.runs.exists():
        return
    for text in [*reversed(dataset.sources()), *filter(None, [dataset.base])]:
        folder = storage.text_path(text).parent
        text.delete()
        transaction.on_commit(partial(storage.discard, folder))


def require_draft(run: Run) -> Run:
    """Lock the run and return its current row. Raises Problem E315 unless it is a draft."""
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state != Run.State.DRAFT:
        raise Problem.of("E315", state=now.state)
    return now


# The texts of a run that mixes several, in the order of the recipe's weights

# Only a draft's texts can be added and removed. Weights can change at any time; each log record states the weights with
# which its samples were leased.

USUAL_WEIGHT = 1.0  # weight of a text added to others that have weights


def require_base(run: Run, filename: str, on_hub: str = "") -> Material:
    """Return the kind of material that a file is for this run: a base model or a tokenizer.

    Raises Problem E392 if the run's recipe uses neither, and E377 if the file is of the wrong kind.
    """
    wanted = run.parsed_recipe.material.brought
    if wanted is None:
        raise Problem.of("E392")
    if not (on_hub == wanted.hub if on_hub else filename.lower().endswith(wanted.suffixes)):
        raise Problem.of("E377", name=filename, file=wanted.file)
    return wanted


@transaction.atomic
def set_base(*, run: Run, base: Dataset, by: Person | None = None) -> None:
    """Set or replace a draft's base model or tokenizer, and prepare the text again.

    Raises Problem E315 if the run is not a draft, E392 if its recipe uses neither, and E377 if `base` is the wrong kind
    of file.
    """
    draft = require_draft(run)
    wanted = require_base(draft, base.filename, base.on_hub)
    _put_base(draft, base)
    what = f"the {wanted.name} {quoted(base.filename)}"
    add_action(run=run, kind="edited", action=f"brought {what}.", by=by)
    run.refresh_from_db()


@transaction.atomic
def remove_base(*, run: Run, by: Person | None = None) -> None:
    """Remove a draft's base model or tokenizer. Without the latter, one is learned from the text.

    Raises Problem E315 if the run is not a draft.
    """
    draft = require_draft(run)
    if (before := draft.dataset.base) is None:
        return
    _put_base(draft, None)
    add_action(run=run, kind="edited", action=f"took {quoted(before.filename)} off.", by=by)
    run.refresh_from_db()


def _put_base(draft: Run, base: Dataset | None) -> None:
    before, recipe = draft.dataset.base, draft.parsed_recipe
    Dataset.objects.filter(pk=draft.dataset_id).update(base=base)
    draft.dataset.base = base
    if before is not None:
        forget_text(before)
    _change(draft, recipe)


def require_source(run: Run, filename: str, on_hub: str = "") -> None:
    """Check that another file, uploaded or on the Hub, may be added to a draft's sources.

    Raises Problem E385 if the draft has the most sources allowed already, and E377 if the file is of the wrong kind.
    """
    if len(run.dataset.sources()) >= MOST_SOURCES:
        raise Problem.of("E385", most=MOST_SOURCES)
    require_suited(run.parsed_recipe, filename, on_hub)


@transaction.atomic
def add_source(*, run: Run, source: Dataset, by: Person | None = None) -> None:
    """Add a text to a draft and prepare all its texts again with one tokenizer.

    Raises Problem E315 if the run is not a draft, E385 if it has the most texts allowed already, and E377 if the new
    text is the wrong kind of file.
    """
    draft = require_draft(run)
    require_source(draft, source.filename, source.on_hub)
    recipe = draft.parsed_recipe
    Dataset.objects.filter(pk=source.pk).update(first=draft.dataset)
    _change(draft, replace(recipe, mix=(*recipe.mix, USUAL_WEIGHT) if recipe.mix else ()))
    add_action(run=run, kind="edited", action=f"added {quoted(source.filename)}.", by=by)
    run.refresh_from_db()


@transaction.atomic
def remove_source(*, run: Run, source: UUID, by: Person | None = None) -> None:
    """Remove an additional text from a draft, if the draft has it. Raises Problem E315 if the run is not a draft."""
    draft = require_draft(run)
    sources, recipe = draft.dataset.sources(), draft.parsed_recipe
    place = next((place for place, each in enumerate(sources) if place and each.pk == source), None)
    if place is None:
        return
    forget_text(sources[place])
    mix = tuple(weight for at, weight in enumerate(recipe.mix) if at != place)
    _change(draft, replace(recipe, mix=mix if len(mix) > 1 and any(mix) else ()))
    add_action(run=run, kind="edited", action=f"took {quoted(sources[place].filename)} off.", by=by)
    run.refresh_from_db()


@transaction.atomic
def choose_field(*, run: Run, source: UUID, field: str, by: Person | None = None) -> None:
    """Choose which field of a text's rows the run reads, and prepare the draft's texts again.

    Raises Problem E315 if the run is not a draft, and E430 if the draft has no such text or field.
    """
    draft = require_draft(run)
    chosen = next((each for each in draft.dataset.sources() if each.pk == source), None)
    verdict = draft.dataset.verdict or {}
    fields = [each["name"] for each in verdict.get("fields", ())]
    if chosen is None or field not in fields:
        raise Problem.of("E430", field=field[:60], fields=", ".join(fields))
    Dataset.objects.filter(pk=chosen.pk).update(field=field)
    draft.dataset.refresh_from_db()
    _change(draft, draft.parsed_recipe)
    add_action(run=run, kind="edited", action=f"chose the field {quoted(field)}.", by=by)
    run.refresh_from_db()


def _change(draft: Run, recipe: Recipe) -> None:
    Run.objects.filter(pk=draft.pk).update(recipe=encode_recipe(recipe).decode(), waiting_for="")
    prepare_anew(draft.dataset, recipe)


@transaction.atomic
def mix_sources(*, run: Run, weights: Sequence[float], by: Person | None = None) -> None:
    """Change the weights with which samples are leased from a run's texts. The change takes effect within a second.

    A draft may have no weights; its texts are then weighted by size. Raises Problem E315 if the run is being prepared
    or is ending, E386 if there is not one weight for each text, and E301 if the weights are out of bounds.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state != Run.State.DRAFT and (now.state not in EXTENDABLE or now.wanted == Run.Wanted.FINISHED):
        raise Problem.of("E315", state=ending_word(now))
    sources = now.dataset.sources()
    is_by_size = not weights and now.state == Run.State.DRAFT
    if len(weights) != len(sources) and not is_by_size:
        raise Problem.of("E386", weights=len(weights), files=len(sources))
    recipe, is_ready = now.parsed_recipe, now.dataset.state == Dataset.State.READY
    if weights and is_ready:
        weights = with_data(weights, now.dataset.source_tokens(len(sources)))
    mixed = checked(replace(recipe, mix=tuple(weights)))
    if mixed.mix == recipe.mix:
        return
    Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(mixed).decode())
    run.refresh_from_db()
    named = recipe.material.named(len(sources))
    told = ", ".join(f"{line.percent} of {quoted(line.dataset.filename)}" for line in source_lines(run))
    add_action(run=run, kind="mixed", action=f"mixes the {named} anew: {told}.", by=by)


def state_weights(run: Run) -> None:
    """Store explicit weights for texts mixed by size, because an open run must have weights.

    Texts held out in full get the weight 0.
    """
    lines, recipe = source_lines(run), run.parsed_recipe
    sizes = [line.tokens or 0 for line in lines]
    if len(lines) > 1 and (not recipe.mix or with_data(recipe.mix, sizes) != recipe.mix):
        weights = tuple(round(line.share, 6) for line in lines)
        stated = encode_recipe(replace(recipe, mix=weights)).decode()
        Run.objects.filter(pk=run.pk, state=Run.State.PREPARING).update(recipe=stated)
