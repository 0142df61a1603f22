"""Preparation of data as shards, in a child process. It may take hours and is safe to repeat.

The child writes its files to a workspace. Once complete, they are moved into place, and then all rows are written in
one transaction.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from django.db import transaction

from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.recipe import encode_recipe
from runs import storage
from runs.datasets.hub_sources import fetch_missing
from runs.datasets.services import lacks_base, preparation_of, require_sample, with_usual_steps
from runs.models import Dataset, Run, Shard
from runs.processes import faults_to, run_child
from runs.states import NOT_OPEN, Why, move
from runs.timeline import add_line


def prepare_dataset(dataset_id: UUID) -> Literal["busy", "done"] | Fault:
    """Fetch any data that is on the Hub. Then make the shards and everything else that the recipe needs.

    Return the error if the Hub did not respond and the caller should try again later. Return "busy" if another fetch is
    running.
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


def _fetch(dataset: Dataset) -> Literal["busy", "done"] | Fault:
    try:
        return fetch_missing(dataset.parts())
    except Problem as problem:
        if problem.fault.code != codes.HUB_AWAY:
            raise
        waiting = Dataset.objects.filter(pk=dataset.pk, state=Dataset.State.PREPARING)
        waiting.update(fault_code=problem.fault.code, fault_text=problem.fault.text)
        return problem.fault


def _prepare(dataset: Dataset) -> None:
    with storage.workspace() as work:
        out = work / "out"
        sources = dataset.sources()
        text, *further = (str(storage.local(storage.text_path(source))) for source in sources)
        more = [word for path in further for word in ("--also", path)]
        more += [word for source in sources for word in (f"--name={source.filename}", f"--field={source.field}")]
        more += ["--base", str(storage.local(storage.text_path(dataset.base)))] if dataset.base is not None else []
        made = run_child(["prepare", text, str(out), "--preparation", dataset.preparation, *more])
        for run in dataset.runs.filter(state__in=NOT_OPEN):
            require_sample(run.parsed_recipe, size=made["size"])
        target = storage.text_path(dataset).parent / work.name
        storage.put(out, target)
        if not _keep_dataset(sources, made, target):
            storage.discard(target)


@transaction.atomic
def _keep_dataset(sources: Sequence[Dataset], made: dict[str, Any], folder: Path) -> bool:
    """Store the prepared data in rows. Return False if another worker was faster or the draft's data has changed."""
    dataset = sources[0]
    names = ("vocab", "characters", "unigram_entropy", "heldout", "verdict")
    facts = {"tokens": made["size"]} | {name: made[name] for name in names if name in made}
    wanted = Dataset.objects.filter(
        pk=dataset.pk, state=Dataset.State.PREPARING, preparation=dataset.preparation, base=dataset.base
    )
    # Lock the row first. Adding or removing a text and choosing a field take the same lock.
    now = wanted.select_for_update().first()
    if now is None or _read(now.sources()) != _read(sources):
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


def _read(sources: Sequence[Dataset]) -> list[tuple[UUID, str]]:
    """Return the sources to prepare, each with the field to read."""
    return [(source.pk, source.field) for source in sources]


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
        back_to_draft(run, fault)


@transaction.atomic
def back_to_draft(run: Run, fault: Fault) -> None:
    """Turn a run back into a draft and tell its organizer why the preparation failed."""
    move(run, Why.NOT_PREPARED, waiting_for=str(fault))
    add_line(run=run, kind="failed", text=str(fault))
