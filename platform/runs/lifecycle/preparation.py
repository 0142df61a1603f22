"""The long work itself: data become shards, a recipe the first parameters, a finished run a release.

Every function takes an id, may be done twice, and writes its outcome, good or bad, into rows. Files are made in a
workspace and moved when they are whole; rows follow in one transaction.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.log.records import GENESIS
from peer_agent.protocol.recipe import encode_recipe
from runs import storage
from runs.datasets.batches import require_data, require_sample, with_usual_steps
from runs.datasets.hub_sources import fetch_missing
from runs.datasets.services import lacks_base, preparation_of
from runs.lifecycle.sources import state_weights
from runs.models import Dataset, Run, Shard, Snapshot
from runs.processes.child import run_child
from runs.processes.faults import faults_to
from runs.states import NOT_OPEN, Why, move
from runs.storage import recipe_file
from runs.timeline import add_line

# Data


def prepare_dataset(dataset_id: UUID) -> Literal["away", "busy", "done"]:
    """Make shards of the data, and whatever else their recipe wants of them; what is on the Hub is fetched first.

    `away`: the Hub did not answer, try again later; `busy`: others are being fetched.
    """
    unprepared = (Dataset.State.UPLOADED, Dataset.State.PREPARING)
    waiting = Dataset.objects.filter(pk=dataset_id, state__in=unprepared)
    if any(lacks_base(each) for each in waiting) or not waiting.update(state=Dataset.State.PREPARING):
        return "done"
    dataset = Dataset.objects.select_related("base").get(pk=dataset_id)
    with faults_to(lambda fault: _fail_dataset(dataset, fault), "E309"):
        if (outcome := _fetch(dataset)) != "done":
            return outcome
        _prepare(dataset)
    return "done"


def _fetch(dataset: Dataset) -> Literal["away", "busy", "done"]:
    try:
        return fetch_missing(dataset.parts())
    except Problem as problem:
        if problem.fault.code != codes.HUB_AWAY:
            raise
        waiting = Dataset.objects.filter(pk=dataset.pk, state=Dataset.State.PREPARING)
        waiting.update(fault_code=problem.fault.code, fault_text=problem.fault.text)
        return "away"


def _prepare(dataset: Dataset) -> None:
    with storage.workspace() as work:
        out = work / "out"
        text, *further = map(str, map(storage.text_path, sources := dataset.sources()))
        more = [word for path in further for word in ("--also", path)]
        more += ["--base", str(storage.text_path(dataset.base))] if dataset.base is not None else []
        made = run_child(["prepare", text, str(out), "--preparation", dataset.preparation, *more])
        for run in dataset.runs.filter(state__in=NOT_OPEN):
            require_sample(run.parsed_recipe, size=made["size"])
        target = storage.text_path(dataset).parent / work.name
        storage.put(out, target)
        if not _keep_dataset(sources, made, target):
            storage.discard(target)


@transaction.atomic
def _keep_dataset(sources: Sequence[Dataset], made: dict[str, Any], folder: Path) -> bool:
    """Whether it is wanted still: another worker was faster, or it was deleted, or is prepared anew meanwhile."""
    dataset = sources[0]
    names = ("vocab", "characters", "unigram_entropy", "pieces", "heldout")
    facts = {"tokens": made["size"]} | {name: made[name] for name in names if name in made}
    wanted = Dataset.objects.filter(
        pk=dataset.pk, state=Dataset.State.PREPARING, preparation=dataset.preparation, base=dataset.base
    )
    # The row is held first, as whoever adds a text or takes one off does too.
    if not wanted.select_for_update().exists() or dataset.sources() != list(sources):
        return False
    well = {"state": Dataset.State.READY, "fault_code": "", "fault_text": ""}
    wanted.update(**well, folder=storage.relative(folder), **facts)
    Shard.objects.bulk_create(
        Shard(
            dataset=dataset,
            position=position,
            digest=shard["digest"],
            tokens=shard["size"],
            source=shard.get("source", 0),
        )
        for position, shard in enumerate(made["shards"])
    )
    dataset.refresh_from_db()
    for run in dataset.runs.filter(state__in=NOT_OPEN):
        _fit_recipe(run, dataset, made)
    return True


def _fit_recipe(run: Run, dataset: Dataset, made: dict[str, Any]) -> None:
    recipe = run.parsed_recipe.fitted(made)
    ready = made["ready"]
    if run.automatic_steps:
        recipe = with_usual_steps(recipe, dataset)
        ready += f" The run is set to {recipe.target_steps:,} steps."
    run.recipe = encode_recipe(recipe).decode()
    run.save(update_fields=["recipe"])
    Dataset.objects.filter(pk=dataset.pk).update(preparation=preparation_of(recipe))
    add_line(run=run, kind="prepared", text=ready)


@transaction.atomic
def _fail_dataset(dataset: Dataset, fault: Fault) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(
        state=Dataset.State.FAILED, fault_code=fault.code, fault_text=fault.text
    )
    for run in dataset.runs.filter(state__in=NOT_OPEN):
        _back_to_draft(run, fault)


# The first parameters


def prepare_run(run_id: UUID) -> None:
    """Make the snapshot of step 0, then open the run."""
    waiting = Run.objects.filter(pk=run_id, state=Run.State.PREPARING, dataset__state=Dataset.State.READY)
    run = waiting.select_related("dataset").first()
    if run is None:
        return
    with faults_to(lambda fault: _back_to_draft(run, fault), "E309"), storage.workspace() as work:
        recipe = run.parsed_recipe
        require_data(recipe, run.dataset)
        made = run_child(["initial", str(recipe_file(run, work)), str(work), *storage.model_files(run)])
        storage.put(work / f"{made['file']}.safetensors", storage.snapshot_path(run, made["file"]))
        _open(run, made)


@transaction.atomic
def _open(run: Run, made: dict[str, Any]) -> None:
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
        state=Snapshot.State.VERIFIED,  # made here
        verified_at=timezone.now(),
    )
    add_line(run=run, kind="opened", text=f"The run is published: a model of {made['elements']:,} parameters.")


@transaction.atomic
def _back_to_draft(run: Run, fault: Fault) -> None:
    move(run, Why.NOT_PREPARED, waiting_for=str(fault))
    add_line(run=run, kind="failed", text=str(fault))


# The release


# What both need
