"""What the tables of version 1 become: the first state is the site's own, the newest agreed one is the anchor."""

import importlib

import pytest
from django.apps import apps

from accounts.models import Person
from runs.models import Run, Snapshot
from tests.runs.factories import opened

pytestmark = pytest.mark.django_db


def test_of_each_run_the_newest_snapshot_is_its_anchor(run: Run, organizer: Person) -> None:
    other = opened(organizer, slug="other")
    for index in (20, 40):
        Snapshot.objects.create(run=run, index=index, step=index, state_digest="1" * 16, file=f"{index:064x}", size=1)
    Snapshot.objects.update(state=Snapshot.State.ADMITTED, verified_at=None)
    importlib.import_module("runs.migrations.0010_snapshots_verified").name_anchors(apps, None)
    assert dict(run.snapshots.values_list("index", "state")) == {0: "verified", 20: "admitted", 40: "anchor"}
    assert list(other.snapshots.values_list("state", flat=True)) == ["verified"], "its relays have every byte"
    assert run.snapshots.get(index=0).verified_at is not None
    assert run.snapshots.get(index=40).verified_at is None
