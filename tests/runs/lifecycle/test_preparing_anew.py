"""A draft that is changed in the moment in which what its data became is kept: on every database, in two threads."""

import time
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from accounts.models import Person
from runs import queue
from runs.datasets import preparation
from runs.datasets.services import prepare_anew
from runs.models import Dataset, Shard
from tests.coordination.engines import database, in_other_thread
from tests.coordination.hosts.test_claims import wait_for_a_lock
from tests.runs.factories import RECIPE, draft

__all__ = ["database"]

MADE = {"size": 900, "ready": "Ready.", "vocab": 300, "shards": [{"digest": "d" * 64, "size": 900}]}


def test_nothing_of_before_is_left(
    database: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "enqueue", lambda *_, **__: None)
    dataset = draft(Person.objects.create_user("Amina", None)).dataset
    Shard.objects.all().delete()
    Dataset.objects.update(state=Dataset.State.PREPARING)
    with transaction.atomic():
        assert preparation._keep_dataset([dataset], MADE, data_folder / "storage" / "prepared")
        changing: Any = in_other_thread(lambda: prepare_anew(dataset, RECIPE))
        if connection.vendor == "postgresql":
            wait_for_a_lock()
        else:
            time.sleep(0.2)
    changing.outcome()
    assert not Shard.objects.exists()
    assert Dataset.objects.get().state == Dataset.State.UPLOADED
