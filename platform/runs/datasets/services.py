"""Functions that store an organizer's datasets, prepare them, and check that they suit a recipe."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from django.db import transaction
from django.utils import timezone
from msgspec.structs import replace

from accounts.models import Person
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, checked
from peer_agent.recipes.preparation import parse_preparation
from runs import quotas, storage
from runs.access import Viewer, listed_runs
from runs.datasets.uploads import is_text, keep_upload, too_long, upload_limit, write_file
from runs.ledger.records import settled_units
from runs.models import Dataset, Release, Run, Upload
from runs.states import NOT_OPEN
from runs.storage import link, local, release_path, text_path


def store_upload(
    *, organizer: Person, title: str, licence: str, filename: str, size: int | None, chunks: Iterable[bytes]
) -> Dataset:
    """Store a file as a dataset.

    Raises Problem E311 if `size` is None, E303 if the file is empty, E304 if it is too large, and E365 if it exceeds
    the organizer's storage quota. All of these are checked before the file is read.
    """
    if size is None:
        raise Problem.of("E311")
    if size == 0:
        raise Problem.of("E303")
    if size > upload_limit():
        raise Problem(too_long(size, upload_limit()))
    quotas.require_disk(organizer, size)
    dataset = new_dataset(organizer=organizer, title=title, licence=licence, filename=filename, size=size)
    with whole_or_gone(dataset):
        dataset.sha256 = write_file(chunks, text_path(dataset), size=size)
        storage.keep(text_path(dataset))
        with transaction.atomic():
            quotas.held(organizer)
            quotas.require_disk(organizer, size)
            dataset.save(force_insert=True)
    return dataset


@contextmanager
def whole_or_gone(dataset: Dataset) -> Iterator[None]:
    """If the block fails, delete the dataset's folder, because no row refers to the folder."""
    try:
        yield
    except BaseException:
        storage.discard(text_path(dataset).parent)
        raise


def store_pieces(*, organizer: Person, title: str, licence: str, upload: Upload) -> Dataset:
    """Store a text uploaded in pieces. Raises Problem E318 if a piece is missing."""
    facts = {"title": title, "licence": licence, "filename": upload.filename, "size": upload.size}
    dataset = new_dataset(organizer=organizer, **facts)
    with whole_or_gone(dataset):
        keep_upload(upload=upload, dataset=dataset, target=text_path(dataset))
    return dataset


def new_dataset(*, organizer: Person, **facts: Any) -> Dataset:
    """Return an unsaved row for a text that the organizer has confirmed may be shared."""
    facts["filename"] = facts["filename"][-200:]
    dataset = Dataset(id=uuid.uuid4(), organizer=organizer, vouched_by=organizer, vouched_at=timezone.now(), **facts)
    dataset.folder = f"datasets/{dataset.id.hex}"
    return dataset


@transaction.atomic
def prepare_anew(dataset: Dataset, recipe: Recipe) -> None:
    """Prepare a dataset again, because the recipe has changed or the site failed to prepare it last time."""
    # Lock the row, so that a worker storing an earlier preparation has either finished already or comes too late.
    Dataset.objects.select_for_update().get(pk=dataset.pk)
    dataset.shards.all().delete()
    dataset.preparation, dataset.state = preparation_of(recipe), Dataset.State.UPLOADED
    dataset.fault_code, dataset.fault_text = "", ""
    dataset.save(update_fields=["preparation", "state", "fault_code", "fault_text"])
    enqueue_preparation(dataset)


def preparation_of(recipe: Recipe) -> str:
    """Return the recipe's data preparation settings, as JSON for rows and child processes."""
    return msgspec.json.encode(recipe.preparation()).decode()


def lacks_base(dataset: Dataset) -> bool:
    """Return True if preparation must wait for the model that the run adapts to this data."""
    return (
        bool(dataset.preparation)
        and dataset.base_id is None
        and parse_preparation(dataset.preparation).material.adapts is not None
    )


def enqueue_preparation(dataset: Dataset) -> None:
    queue.put(Kind.PREPARE_DATASET, dataset.pk)


# Checking data against a recipe


def require_suited(recipe: Recipe, filename: str, on_hub: str = "") -> None:
    """Raise Problem E377 unless the recipe can learn from this file or Hub repository.

    `filename` is judged by its suffix. `on_hub` is the kind of Hub repository, or empty.
    """
    material = recipe.material
    is_suited = filename.lower().endswith(material.suffixes) or (material.or_text and is_text(filename))
    if not (on_hub == material.hub if on_hub else is_suited):
        raise Problem.of("E377", name=filename, file=material.file)


def require_data(recipe: Recipe, dataset: Dataset) -> None:
    """Raise Problem E307 if the prepared data has too few samples for a step, or E317 if it has not even one."""
    shards = list(dataset.shards.values_list("tokens", flat=True))
    require_sample(recipe, size=sum(shards))
    _require(recipe, samples=sum(map(recipe.samples_in, shards)))


def require_batch(recipe: Recipe, *, size: int) -> None:
    """Raise Problem E307 if data of this size has too few samples for a step, or E317 if it has not even one."""
    require_sample(recipe, size=size)
    _require(recipe, samples=recipe.samples_in(size))


def require_sample(recipe: Recipe, *, size: int) -> None:
    """Raise Problem E317 if data of this size does not contain at least one whole sample."""
    if size < recipe.least_size():
        raise Problem.of("E317", size=f"{size:,}", unit=recipe.material.unit, least=f"{recipe.least_size():,}")


def with_usual_steps(recipe: Recipe, dataset: Dataset) -> Recipe:
    """Return the recipe with the default number of steps for this amount of prepared data."""
    samples = sum(map(recipe.samples_in, dataset.shards.values_list("tokens", flat=True)))
    return checked(replace(recipe, target_steps=recipe.steps_over(samples)))


def _require(recipe: Recipe, *, samples: int) -> None:
    if samples < recipe.target_batch:
        raise Problem.of("E307", samples=f"{samples:,}", needed=f"{recipe.target_batch:,}")


# The texts of a run that mixes several


class SourceLine(NamedTuple):
    """One of a run's texts. `share` is the fraction of future samples leased from this text, from 0 to 1.

    A text held out in full has no tokens to learn from, and therefore no share.
    """

    dataset: Dataset
    tokens: int | None  # None until prepared
    share: float

    @property
    def percent(self) -> str:
        return percent(self.share)


def percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.1 or not share else f"{100 * share:.2g}%"


def source_lines(run: Run) -> list[SourceLine]:
    """Return a line for each of a run's texts. An open run with a single text needs no query, others at most two."""
    recipe, first = run.parsed_recipe, run.dataset
    has_one = not recipe.mix and run.state not in NOT_OPEN  # runs with several texts get weights when they open
    sources = [first] if has_one else first.sources()
    if len(sources) == 1:
        return [SourceLine(first, first.tokens, 1.0)]
    is_ready = first.state == Dataset.State.READY
    sizes = first.source_tokens(len(sources)) if is_ready else [source.size for source in sources]
    parts = recipe.mix or sizes
    if is_ready:
        parts = found if any(found := with_data(parts, sizes)) else sizes
    together = sum(parts)
    return [
        SourceLine(source, size if is_ready else None, part / together if together else 1 / len(sources))
        for source, size, part in zip(sources, sizes, parts, strict=True)
    ]


def with_data(weights: Sequence[float], sizes: Sequence[int]) -> tuple[float, ...]:
    """Return the weights, with 0 for sources that are held out in full and so have no data to learn from."""
    return tuple(weight if size else 0 for weight, size in zip(weights, sizes, strict=True))


def shares_used(run: Run, count: int) -> list[float]:
    """Return each source's fraction of the committed samples, which may differ from the current weights."""
    sources = list(run.dataset.shards.order_by("position").values_list("source", flat=True))
    used = [0] * count
    for unit in settled_units(run):
        used[sources[unit.shard]] += unit.samples
    return [part / max(sum(used), 1) for part in used]


# Models trained on this site, offered to runs that adapt a model

LOOKED_AT, MOST = 500, 100  # latest releases to examine, and most to offer


def adaptable_releases(recipe: Recipe, viewer: Viewer) -> list[Release]:
    """Return releases of models that the recipe can adapt, latest first, from runs that are listed for the viewer."""
    ready = Release.objects.filter(state=Release.State.READY, run__in=listed_runs(viewer))
    newest = ready.select_related("run__dataset").order_by("-created_at", "-pk")[:LOOKED_AT]
    return [release for release in newest if _is_for(recipe, release.run.parsed_recipe)][:MOST]


def _is_for(recipe: Recipe, trained: Recipe) -> bool:
    return bool(recipe.task) and (recipe.task, recipe.library) == (trained.task, trained.library)


def bring_release(release: Release, *, organizer: Person, title: str, licence: str) -> Dataset:
    """Store a release as a dataset, for a run that will adapt its model.

    `licence` defaults to that of the text that the model was trained on. Raises Problem E365 if the release exceeds the
    organizer's storage quota.
    """
    archive = next(file for file in release.files if file["name"] == release.archive)
    dataset = new_dataset(
        organizer=organizer,
        title=title,
        licence=licence or release.run.dataset.licence,
        filename=archive["name"],
        size=archive["size"],
        sha256=archive["sha256"],
    )
    with whole_or_gone(dataset):
        link(local(release_path(release, archive["name"])), text_path(dataset))
        with transaction.atomic():
            quotas.held(organizer)
            quotas.require_disk(organizer, archive["size"])
            dataset.save(force_insert=True)
    return dataset
