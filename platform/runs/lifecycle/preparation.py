"""The long work itself: a text becomes shards, a recipe the first parameters, a finished run a release.

Every function takes an id, may be done twice, and writes its outcome, good or bad, into rows. Files are made in a
workspace and moved when they are whole; rows follow in one transaction.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.log.records import GENESIS
from peer_agent.protocol.recipe import encode_recipe
from runs import storage
from runs.access import NOT_OPEN
from runs.datasets.batches import require_sample, require_text
from runs.models import Dataset, Release, Run, Shard, Snapshot
from runs.processes.child import ChildStopped, run_child
from runs.processes.disk_full import disk_fault
from runs.releases.card_facts import release_facts
from runs.timeline import tell, tell_once

logger = logging.getLogger(__name__)


# A text


def prepare_dataset(dataset_id: UUID) -> None:
    """Train the tokenizer and cut the text in shards."""
    unprepared = (Dataset.State.UPLOADED, Dataset.State.PREPARING)
    if not Dataset.objects.filter(pk=dataset_id, state__in=unprepared).update(state=Dataset.State.PREPARING):
        return
    dataset = Dataset.objects.get(pk=dataset_id)
    with faults_to(lambda fault: _fail_dataset(dataset, fault), "E309"), storage.workspace() as work:
        out = work / "out"
        made = run_child(["prepare", str(storage.text_path(dataset)), str(out), "--vocab", str(dataset.vocab)])
        for run in dataset.runs.filter(state__in=NOT_OPEN):
            require_sample(run.parsed_recipe, tokens=made["tokens"])
        target = storage.text_path(dataset).parent / work.name
        storage.put(out, target)
        if not _keep_dataset(dataset, made, target):
            storage.discard(target)


@transaction.atomic
def _keep_dataset(dataset: Dataset, made: dict[str, Any], folder: Path) -> bool:
    """Whether it is wanted still: another worker was faster, or it was deleted, or cut into other pieces meanwhile."""
    facts = ("vocab", "tokens", "characters", "unigram_entropy", "pieces", "heldout")
    changed = Dataset.objects.filter(pk=dataset.pk, state=Dataset.State.PREPARING, vocab=dataset.vocab).update(
        state=Dataset.State.READY, folder=storage.relative(folder), **{name: made[name] for name in facts}
    )
    if not changed:
        return False
    Shard.objects.bulk_create(
        Shard(dataset=dataset, position=position, digest=shard["digest"], tokens=shard["tokens"])
        for position, shard in enumerate(made["shards"])
    )
    dataset.refresh_from_db()
    for run in dataset.runs.filter(state__in=NOT_OPEN):
        _fit_recipe(run, dataset)
    return True


def _fit_recipe(run: Run, dataset: Dataset) -> None:
    """A small text may have fewer different pieces than were asked for; the model has exactly one row for each."""
    recipe = msgspec.structs.replace(run.parsed_recipe, vocab=dataset.vocab)
    run.recipe = encode_recipe(recipe).decode()
    run.save(update_fields=["recipe"])
    tell(run=run, kind="prepared", text=f"The text is ready: {dataset.tokens:,} tokens, {dataset.vocab:,} pieces.")


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
        require_text(recipe, run.dataset)
        made = run_child(["initial", str(recipe_file(run, work)), str(work)])
        storage.put(work / f"{made['file']}.safetensors", storage.snapshot_path(run, made["file"]))
        _open(run, made)


@transaction.atomic
def _open(run: Run, made: dict[str, Any]) -> None:
    changed = Run.objects.filter(pk=run.pk, state=Run.State.PREPARING).update(
        state=Run.State.OPEN, opened_at=timezone.now(), elements=made["elements"], waiting_for=""
    )
    if not changed:
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
    tell(run=run, kind="opened", text=f"The run is open: a model of {made['elements']:,} parameters.")


@transaction.atomic
def _back_to_draft(run: Run, fault: Fault) -> None:
    Run.objects.filter(pk=run.pk, state__in=NOT_OPEN).update(state=Run.State.DRAFT, waiting_for=str(fault))
    tell(run=run, kind="failed", text=str(fault))


# The release


def make_release(run_id: UUID, *, anew: bool = False) -> Release.State:
    """Make what people download from the newest snapshot, and how that went. The run is finished when it is there.

    Nothing is made, and the release stays in preparation, while that snapshot is not verified.

    `anew`: also where there is one, which is offered until the other is whole.
    """
    release = Release.objects.select_related("run__dataset", "run__organizer", "run__head").get(run=run_id)
    if release.state == Release.State.READY and not anew:
        return Release.State.READY
    run = release.run
    snapshot = run.snapshots.order_by("-index")[0]
    if snapshot.state == Snapshot.State.ADMITTED:
        return Release.State.PREPARING
    with faults_to(lambda fault: _fail_release(release, fault), "E312"), storage.workspace() as work:
        known = release_facts(run, snapshot)
        facts = work / "facts.json"
        facts.write_bytes(msgspec.json.encode(known))
        made = run_child(
            [
                "release",
                str(recipe_file(run, work)),
                str(storage.snapshot_path(run, snapshot.file)),
                str(storage.tokenizer_folder(run.dataset)),
                str(work / "out"),
                "--facts",
                str(facts),
            ]
        )
        target = storage.root() / "runs" / run.id.hex / f"release-{work.name}"
        storage.put(work / "out", target)
        if not _keep_release(release, made | {"named": [person.name for person in known.people]}, target):
            storage.discard(target)
    release.refresh_from_db()
    return Release.State(release.state)


@transaction.atomic
def _keep_release(release: Release, made: dict[str, Any], folder: Path) -> bool:
    """False where another worker was faster."""
    before = release.folder
    if not Release.objects.filter(pk=release.pk, folder=before).update(
        state=Release.State.READY,
        folder=storage.relative(folder),
        files=made["files"],
        archive=made["archive"],
        sample=made["sample"],
        named=made["named"],
        fault="",
    ):
        return False
    if before:
        transaction.on_commit(lambda: shutil.rmtree(storage.root() / before, ignore_errors=True))
    changed = Run.objects.filter(pk=release.run_id).exclude(state=Run.State.FINISHED)
    if changed.update(state=Run.State.FINISHED, finished_at=timezone.now(), waiting_for=""):
        tell(run=release.run, kind="finished", text="The run is finished. Its model can be downloaded.")
    return True


@transaction.atomic
def _fail_release(release: Release, fault: Fault) -> None:
    if fault.code != "E312":
        fault = Fault.of("E312", reason=fault)
    if release.state == Release.State.READY:  # there still is one
        logger.error("run %s: %s", release.run.slug, fault)
        return
    Release.objects.filter(pk=release.pk).update(state=Release.State.FAILED, fault=str(fault))
    Run.objects.filter(pk=release.run_id).update(waiting_for=str(fault))
    tell_once(run=release.run, kind="failed", text=str(fault))


# What both need


@contextmanager
def faults_to(record: Callable[[Fault], None], code: str) -> Iterator[None]:
    """Record what goes wrong in the block; `code` numbers what nobody foresaw. A site that goes down is no fault."""
    try:
        yield
    except ChildStopped:
        logger.info("stopped with the site; done again at the next start")
    except Problem as problem:
        logger.warning("%s", problem)
        record(Fault.of("E328") if problem.fault.code == "E106" else problem.fault)  # a child says where its disk is
    except Exception as error:
        logger.exception("unforeseen")
        # What else the error says may name this machine's folders; everybody reads the page.
        record(disk_fault(error) or Fault.of(code, reason=type(error).__name__))


def recipe_file(run: Run, work: Path) -> Path:
    """The run's recipe as a file for a child."""
    path = work / "recipe.json"
    path.write_text(run.recipe)
    return path
