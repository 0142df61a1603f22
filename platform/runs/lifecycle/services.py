"""An organizer's actions on a run: create, open, pause, extend, end, roll back. Jobs do the slow work later."""

import secrets
from typing import Any
from uuid import UUID

import msgspec
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.text import slugify

from accounts.models import Person
from jobs import queue
from jobs.queue import Kind
from notices import outbox
from notices.models import Event
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import GENESIS
from peer_agent.protocol.recipe import Recipe, checked, encode_recipe
from runs import quotas, storage
from runs.datasets.preparation import back_to_draft
from runs.datasets.services import (
    enqueue_preparation,
    lacks_base,
    preparation_of,
    prepare_anew,
    require_batch,
    require_data,
    require_suited,
)
from runs.lifecycle.drafts import state_weights
from runs.models import Dataset, Head, Recheck, Release, Run, Snapshot
from runs.processes import faults_to, run_child
from runs.selectors import best_snapshot
from runs.states import EXTENDABLE, LIVE, Why, ending_word, move
from runs.storage import recipe_file
from runs.timeline import ROLLING_BACK, add_action, add_line, quoted

RESERVED = {"new"}  # /runs/new/ is the form for creating a run
TITLE_PART = 43  # characters of the title used in an address, before up to 17 random ones
ATTEMPTS = 5
OURS = {"E309", "E327", "E328", "E347", "E397", "E399"}  # faults of the site or the Hub, not of the text


@transaction.atomic
def create_run(
    *,
    organizer: Person,
    dataset: Dataset,
    title: str,
    purpose: str,
    recipe: Recipe,
    visibility: Run.Visibility = Run.Visibility.PUBLIC,
    automatic_steps: bool = False,
    prompts: str = "",
    people_goal: int | None = None,
) -> Run:
    """Create a draft that learns from a text, and start preparing the text at once.

    With `automatic_steps`, the number of steps depends on how much data is prepared. Raises Problem E301 if the recipe
    is out of bounds, E307 or E317 if there is too little data, and E377 if the text is the wrong kind of file. Raises
    E364 if the organizer has too many drafts, and E366 if the model exceeds their quota.
    """
    checked(recipe)
    quotas.held(organizer)
    quotas.require_draft_left(organizer)
    quotas.require_model(organizer, recipe)
    # A token or an image takes at least one byte, which bounds the number of samples. The exact check follows after
    # preparation.
    require_batch(recipe, size=dataset.size)
    require_suited(recipe, dataset.filename, dataset.on_hub)
    dataset.preparation = preparation_of(recipe)
    dataset.save(update_fields=["preparation"])
    run = Run(
        title=title,
        purpose=purpose,
        organizer=organizer,
        dataset=dataset,
        recipe=encode_recipe(recipe).decode(),
        visibility=visibility,
        automatic_steps=automatic_steps,
        prompts=prompts,
        people_goal=people_goal,
    )
    save_with_address(run)
    Head.objects.create(run=run)
    add_action(run=run, kind="created", action=f"created this run from {quoted(dataset.filename)}.")
    enqueue_preparation(dataset)
    return run


@transaction.atomic
def open_run(*, run: Run, seen: str, by: Person | None = None) -> None:
    """Open a run to volunteers, once its first parameters exist.

    If the site failed to prepare the run's text, or prepared it before verdicts existed, prepare it again instead.
    Resume a paused run. Do nothing if the run is open or about to open.

    `seen` is the mark of the verdict that the person has seen. Raises Problem E445 if it is not the current one, E387
    if the model to adapt is missing, and E307 or E317 if there is too little data. If the text could not be prepared,
    raises a Problem with the text's fault. Quotas may have been lowered: raises E366 if the model is now too large, and
    E367 if the organizer has too many active runs.
    """
    if run.state == Run.State.PAUSED:
        resume_run(run=run, by=by)
    if run.state != Run.State.DRAFT:
        return
    quotas.held(run.organizer)
    quotas.require_run_left(run.organizer)
    quotas.require_model(run.organizer, run.parsed_recipe)
    # Every change to a draft's data takes this lock too, so the data stays as checked here.
    run.dataset = Run.objects.select_for_update(of=("self",)).select_related("dataset").get(pk=run.pk).dataset
    if lacks_base(run.dataset):
        raise Problem.of("E387")
    if failed_here(run.dataset) or (run.dataset.state == Dataset.State.READY and run.dataset.verdict is None):
        run.waiting_for = ""
        run.save(update_fields=["waiting_for"])
        prepare_anew(run.dataset, run.parsed_recipe)
        return
    if run.dataset.state == Dataset.State.FAILED and run.dataset.fault is not None:
        raise Problem(run.dataset.fault)
    if run.dataset.state != Dataset.State.READY or seen != run.dataset.mark:
        raise Problem.of("E445")
    require_data(run.parsed_recipe, run.dataset)
    if move(run, Why.WANTED_OPEN, waiting_for=""):
        add_action(run=run, kind="opened", action="published the run.", by=by, is_internal=True)
        queue.put(Kind.PREPARE_RUN, run.pk)


def failed_here(dataset: Dataset) -> bool:
    """Return True if preparing the dataset failed because of the site or the Hub, so that it is worth trying again."""
    return dataset.state == Dataset.State.FAILED and dataset.fault_code in OURS


def prepare_run(run_id: UUID) -> None:
    """Make the snapshot at step 0, then open the run. If that fails, turn the run back into a draft."""
    waiting = Run.objects.filter(pk=run_id, state=Run.State.PREPARING, dataset__state=Dataset.State.READY)
    run = waiting.select_related("dataset").first()
    if run is None:
        return
    with faults_to(lambda fault: back_to_draft(run, fault), "E309"), storage.workspace() as work:
        recipe = run.parsed_recipe
        require_data(recipe, run.dataset)
        made = run_child(["initial", str(recipe_file(run, work)), str(work), *storage.model_files(run)])
        storage.put(work / f"{made['file']}.safetensors", storage.snapshot_path(run, made["file"]))
        _begin(run, made)


@transaction.atomic
def _begin(run: Run, made: dict[str, Any]) -> None:
    state_weights(run)
    if not move(run, Why.PREPARED, opened_at=timezone.now(), elements=made["elements"], waiting_for=""):
        return
    Snapshot.objects.create(
        run=run,
        index=0,
        step=0,
        digest=GENESIS,
        state_digest=made["state_digest"],
        file=made["file"],
        size=made["size"],
        state=Snapshot.State.VERIFIED,  # made by the site itself
        verified_at=timezone.now(),
    )
    add_line(run=run, kind="opened", text=f"The run is published: a model of {made['elements']:,} parameters.")


@transaction.atomic
def pause_run(*, run: Run, by: Person | None = None) -> None:
    """Pause the run, so that no new round begins. A round in progress may still be committed."""
    if move(run, Why.PAUSED):
        add_action(run=run, kind="paused", action="paused the run.", by=by)


@transaction.atomic
def halt_run(*, run: Run, reason: str) -> None:
    """Pause a run because its loss has risen, and notify its managers. Forget what an earlier recheck found."""
    if move(run, Why.HALTED, waiting_for=reason):
        Recheck.objects.filter(run=run, about="").delete()
        managers = [run.organizer_id, *run.roles.exclude(accepted_at=None).values_list("person", flat=True)]
        path = f"/runs/{run.slug}/manage/#rollback"
        outbox.note(Event.HALTED, managers, about=f"{run.run_id}:{run.head.index}", title=run.title, path=path)


@transaction.atomic
def resume_run(*, run: Run, by: Person | None = None) -> None:
    if move(run, Why.RESUMED, waiting_for=""):
        add_action(run=run, kind="resumed", action="resumed the run.", by=by)


@transaction.atomic
def finish_run(*, run: Run, target_steps: int | None = None) -> bool:
    """Mark a run as finishing after its last step, and request the jobs that archive its log and release its model.

    This is safe to repeat. Do nothing and return False if the organizer has requested a rollback, or changed the number
    of steps from `target_steps`.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.rollback_index is not None:
        return False
    if target_steps not in (None, now.parsed_recipe.target_steps) and now.wanted != Run.Wanted.FINISHED:
        return False
    move(run, Why.LAST_STEP, waiting_for="")
    outbox.withdraw_all(run.run_id)
    release, _ = Release.objects.get_or_create(run=run)
    queue.put(Kind.ARCHIVE_LOG, run.pk)
    if release.state != Release.State.READY:
        queue.put(Kind.MAKE_RELEASE, run.pk)
    return True


def save_with_address(run: Run) -> None:
    """Save a new run at a free address. Try again if another run takes the address at the same moment."""
    for attempt in range(ATTEMPTS):
        run.slug = free_slug(run.title, is_secret=run.visibility == Run.Visibility.UNLISTED)
        try:
            with transaction.atomic():
                run.save(force_insert=True)
        except IntegrityError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def free_slug(title: str, *, is_secret: bool = False) -> str:
    """Return an address based on the title. If it is taken or has no Latin letters, append random characters.

    `is_secret` appends sixteen random characters, so that the address cannot be guessed from the title.
    """
    wanted = slugify(title)[:TITLE_PART].strip("-")
    slug = "" if is_secret else wanted
    while not slug or slug in RESERVED or Run.objects.filter(slug=slug).exists():
        slug = f"{wanted or 'run'}-{secrets.token_hex(8 if is_secret else 2)}"
    return slug


# A run's length

# Peers keep the recipe that they got on joining, but use nothing in it that depends on the number of steps: each record
# states its learning rate. A live run can therefore be extended. Its host tells the coordinator within a second.


def most_steps() -> int:
    field = next(field for field in msgspec.inspect.type_info(Recipe).fields if field.name == "target_steps")  # type: ignore[attr-defined]
    return int(field.type.le)


@transaction.atomic
def extend_run(*, run: Run, target_steps: int, by: Person | None = None) -> None:
    """Extend the run. From the next step on, the learning rate falls more slowly.

    Raises Problem E315 if the run is being prepared or is ending, and E316 if it already has that many steps or cannot
    have so many.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state not in EXTENDABLE or now.wanted == Run.Wanted.FINISHED:
        raise Problem.of("E315", state=ending_word(now))
    recipe = now.parsed_recipe
    if not recipe.target_steps < target_steps <= most_steps():
        raise Problem.of("E316", steps=f"{recipe.target_steps:,}", most=f"{most_steps():,}")
    longer = msgspec.structs.replace(recipe, target_steps=target_steps)
    Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(longer).decode(), automatic_steps=False)
    run.refresh_from_db()
    action = f"extended the run: {target_steps:,} steps instead of {recipe.target_steps:,}."
    add_action(run=run, kind="extended", action=action, by=by)


@transaction.atomic
def end_run(*, run: Run, by: Person | None = None) -> None:
    """End the run at its current step. A machine then uploads that state, and the site releases it.

    Raises Problem E315 if the run is not open or paused, E320 if it has made no step, and E412 if it is being rolled
    back.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state not in LIVE:
        raise Problem.of("E315", state=ending_word(now))
    if now.wanted == Run.Wanted.FINISHED:
        return
    if now.rollback_index is not None:
        raise Problem.of("E412", reason="it is being rolled back")
    step = Head.objects.get(run=run).step
    if not step:
        raise Problem.of("E320")
    move(run, Why.ENDED)
    where = f"at step {step:,}, or after the step under way"
    add_action(run=run, kind="ending", action=f"is ending the run {where}.", by=by)


# Rollback to a snapshot, which the run's host carries out within a second


def rollback_targets(run: Run) -> list[Snapshot]:
    """Return possible rollback targets, latest first: verified earlier snapshots whose files are stored."""
    rows = run.snapshots.filter(
        state=Snapshot.State.VERIFIED, is_stored=True, is_undone=False, step__lt=run.head.step
    ).order_by("-index")
    return [row for row in rows if storage.has(storage.snapshot_path(run, row.file))]


def rollback_facts(run: Run) -> dict[str, Any]:
    """Return the facts about rollback for a page: possible targets, the best one, and any rollback under way."""
    if not can_roll_back(run):
        return {}
    found = run.snapshots.filter(index=run.rollback_index).first() if run.rollback_index is not None else None
    return {"targets": rollback_targets(run), "best": best_snapshot(run), "rolling_to": found}


def can_roll_back(run: Run) -> bool:
    return run.state in LIVE and run.wanted != Run.Wanted.FINISHED


@transaction.atomic
def ask_rollback(*, run: Run, index: int, by: Person | None = None) -> None:
    """Request a rollback to the snapshot at this log entry. Repeating the request changes nothing.

    Raises Problem E412, with the reason, if the run cannot be rolled back to it now.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.rollback_index == index:
        return
    if not can_roll_back(now):
        raise Problem.of("E412", reason=f"the run is {ending_word(now)}")
    if now.rollback_index is not None:
        raise Problem.of("E412", reason="it is being rolled back")
    target = next((row for row in rollback_targets(now) if row.index == index), None)
    if target is None:
        raise Problem.of("E412", reason="this snapshot is no longer stored, or its steps were undone")
    Run.objects.filter(pk=run.pk).update(rollback_index=index)
    add_action(run=run, kind=ROLLING_BACK, action=f"is rolling the run back to step {target.step:,}.", by=by)
