"""What an organizer does with texts: kept whole or from pieces, and prepared again."""

import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.preparation import parse_preparation
from runs import queue, quotas
from runs.datasets.batches import is_text
from runs.datasets.resumable_upload import keep_upload
from runs.datasets.text_upload import too_long, upload_limit, write_file
from runs.models import Dataset, Upload
from runs.queue import TaskName
from runs.storage import text_path


def store_upload(
    *, organizer: Person, title: str, licence: str, filename: str, size: int | None, chunks: Iterable[bytes]
) -> Dataset:
    """Keep a file. Raises Problem E311, E303, E304, E365 before the first chunk is read, and E302."""
    if size is None:
        raise Problem.of("E311")
    if size == 0:
        raise Problem.of("E303")
    if size > upload_limit():
        raise Problem(too_long(size, upload_limit()))
    quotas.require_disk(organizer, size)
    dataset = new_dataset(organizer=organizer, title=title, licence=licence, filename=filename, size=size)
    with whole_or_gone(dataset):
        dataset.sha256 = write_file(chunks, text_path(dataset), size=size, is_text=is_text(filename))
        with transaction.atomic():
            quotas.held(organizer)
            quotas.require_disk(organizer, size)
            dataset.save(force_insert=True)
    return dataset


@contextmanager
def whole_or_gone(dataset: Dataset) -> Iterator[None]:
    """Where the block fails, and with it the dataset's row, its file goes too."""
    try:
        yield
    except BaseException:
        shutil.rmtree(text_path(dataset).parent, ignore_errors=True)
        raise


def store_pieces(*, organizer: Person, title: str, licence: str, upload: Upload) -> Dataset:
    """Keep a text that came in pieces. Raises Problem E318."""
    facts = {"title": title, "licence": licence, "filename": upload.filename, "size": upload.size}
    dataset = new_dataset(organizer=organizer, **facts)
    keep_upload(upload=upload, dataset=dataset, target=text_path(dataset))
    return dataset


def new_dataset(*, organizer: Person, **facts: Any) -> Dataset:
    """A row for a text that its organizer says may be shared, not saved yet."""
    facts["filename"] = facts["filename"][-200:]
    dataset = Dataset(id=uuid.uuid4(), organizer=organizer, vouched_by=organizer, vouched_at=timezone.now(), **facts)
    dataset.folder = f"datasets/{dataset.id.hex}"
    return dataset


@transaction.atomic
def prepare_anew(dataset: Dataset, recipe: Recipe) -> None:
    """Have it prepared again, for another recipe or because the site failed."""
    # Held, so that whoever keeps what was prepared before is done with it, or comes too late.
    Dataset.objects.select_for_update().get(pk=dataset.pk)
    dataset.shards.all().delete()
    dataset.preparation, dataset.state = preparation_of(recipe), Dataset.State.UPLOADED
    dataset.fault_code, dataset.fault_text = "", ""
    dataset.save(update_fields=["preparation", "state", "fault_code", "fault_text"])
    enqueue_preparation(dataset)


def preparation_of(recipe: Recipe) -> str:
    """How data are prepared for a recipe, as rows and children have it."""
    return msgspec.json.encode(recipe.preparation()).decode()


def lacks_base(dataset: Dataset) -> bool:
    """Whether it cannot be prepared before a model is brought that is adapted with it."""
    return (
        bool(dataset.preparation)
        and dataset.base_id is None
        and parse_preparation(dataset.preparation).material.adapts is not None
    )


def enqueue_preparation(dataset: Dataset) -> None:
    """Have the text prepared once this transaction has committed."""
    queue.enqueue_on_commit(TaskName.PREPARE_DATASET, dataset.pk)
