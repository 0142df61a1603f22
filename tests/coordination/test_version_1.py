"""A database of version 1, with an unfinished run in it: it is migrated, loaded, and goes on."""

import hashlib
import importlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Sum

from accounts.keys import site_key
from accounts.models import Machine
from config.environment import postgresql, sqlite
from coordination import store
from coordination.hosts import claims
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.log.records import Entry, Record, Unit, digest_of
from peer_agent.protocol.recipe import encode_recipe
from runs import storage
from runs.ledger import standings
from runs.ledger.audit import audit
from runs.ledger.records import settled_units
from runs.models import Run, SealedRecord
from runs.selectors import activity, void_rounds
from tests.coordination.engines import everywhere
from tests.coordination.example_run import next_record, record_of, sealed
from tests.protocol.version_1 import seal_1
from tests.runs.factories import ELEMENTS, RECIPE, Owned

STEPS = 70  # more than lines about steps that are kept
SIZE = 125  # samples of an epoch: 1,000 tokens with a context of 8


@pytest.fixture(params=["sqlite", "postgresql"])
def version_1(request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: Any) -> Iterator[Any]:
    """The models of an empty database as version 1 made it, in use."""
    with django_db_blocker.unblock():
        if request.param == "sqlite":
            sqlite3.connect(tmp_path / "old.sqlite3").close()
            with everywhere(sqlite(str(tmp_path / "old.sqlite3"))):
                yield migrated(last_of_version_1())
            return
        name, server = f"old_{uuid.uuid4().hex[:8]}", request.getfixturevalue("postgres_url")
        with psycopg.connect(server, autocommit=True) as control:
            control.execute(f"CREATE DATABASE {name}".encode())
            try:
                with everywhere(postgresql(server.replace("/postgres?", f"/{name}?", 1))):
                    yield migrated(last_of_version_1())
            finally:
                control.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


LAST_OF_VERSION_1 = {"runs": "0005_site_snapshot_stored", "coordination": "0001_initial"}


def last_of_version_1() -> list[tuple[str, str]]:
    """Every app at its newest, but runs and what stands on it."""
    leaves = MigrationExecutor(connection).loader.graph.leaf_nodes()
    return [(app, LAST_OF_VERSION_1.get(app, name)) for app, name in leaves]


def migrated(targets: list[tuple[str, str]]) -> Any:
    """The models as they are there."""
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    return executor.loader.project_state(targets).apps


def newest() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


@pytest.fixture
def grown(version_1: Any, data_folder: Path) -> list[Record]:
    """A run at step 70 in its third epoch, as version 1 wrote it: Teo with two machines, Noor with one."""
    made = Old(version_1)
    return [made.step(number) for number in range(1, STEPS + 1)]


class Old:
    """Rows as version 1 wrote them."""

    def __init__(self, models: Any) -> None:
        self.models = models
        people = [self.create("accounts.Person", username=name, password="!") for name in ("Amina", "Teo", "Noor")]
        owners = [people[1], people[1], people[2]]
        self.machines = [
            self.create("accounts.Machine", person=owner, name=f"machine {place}", public_key=bytes([place]) * 32)
            for place, owner in enumerate(owners)
        ]
        facts = {"title": "Proverbs", "licence": "CC0", "filename": "p.txt", "size": 1, "sha256": "a" * 64}
        text = self.create("runs.Dataset", organizer=people[0], state="ready", folder="d", **facts)
        self.create("runs.Shard", dataset=text, position=0, digest="b" * 64, tokens=1000)
        recipe = encode_recipe(RECIPE).decode()
        named = {"slug": "proverbs", "title": "A model", "recipe": recipe, "elements": ELEMENTS}
        self.run = self.create("runs.Run", organizer=people[0], dataset=text, state="open", **named)
        self.head = self.create("runs.Head", run=self.run, fence=1)
        state = b"the first parameters"
        file = hashlib.sha256(state).hexdigest()
        self.create("runs.Snapshot", run=self.run, index=0, step=0, state_digest="0" * 16, file=file, size=len(state))
        path = storage.snapshot_path(self.run, file)
        path.parent.mkdir(parents=True)
        path.write_bytes(state)

    def create(self, model: str, **facts: Any) -> Any:
        return self.models.get_model(model).objects.create(**facts)

    def step(self, number: int) -> Record:
        """Three samples of Teo's first machine, and in turn two of his second or of Noor's."""
        epoch, start = divmod(5 * (number - 1), SIZE)
        units = [Unit(epoch, 0, start, start + 3), Unit(epoch, 0, start + 3, start + 5)]
        parts = [(self.machines[0], (units[0],)), (self.machines[1 + number % 2], (units[1],))]
        known = [(machine.pk.hex, machine.person.username, machine.name, held) for machine, held in parts]
        place = {"index": number, "step": number, "previous": self.head.digest, "fence": 1}
        record = record_of(known, run=self.run.pk.hex, **place)
        self.commit(record, seal_1(site_key(), record))
        for kind in ("step", *(["void"] if number % 10 == 0 else [])):
            self.create("runs.Happening", run=self.run, kind=kind, text=f"{kind} {number}")
        for unit in units:
            mark = self.models.get_model("runs.LeaseMark").objects
            mark.update_or_create(run=self.run, epoch=unit.epoch, shard=0, defaults={"mark": min(SIZE, unit.stop + 4)})
        return record

    def commit(self, record: Record, made: Signed) -> None:
        facts = {"loss": record.loss, "tokens": record.tokens, "samples": record.samples, "exact": True}
        bulk = {"record": made.payload, "signature": made.signature, "digest": digest_of(made)}
        place = {"run": self.run, "step": record.step}
        rest = {"index": record.index, "peers": 2, "duration_s": 1.0, "attempts": 1}
        entry = self.create("runs.LogEntry", **place, **bulk, **facts, **rest)
        for part in record.contributions:
            machine = next(machine for machine in self.machines if machine.pk.hex == part.peer)
            amounts = {name: getattr(part, name) for name in ("samples", "tokens", "credit", "weight")}
            self.create("runs.LedgerEntry", entry=entry, person=machine.person, machine=machine, **place, **amounts)
        self.head.index, self.head.step, self.head.digest = record.index, record.step, digest_of(made)
        self.head.save()


def test_it_goes_on(grown: list[Record]) -> None:
    newest()
    run = store.run_named(Run.objects.get().run_id)
    assert audit(run)["faults"] == []
    assert store.sealed_from(run, 1, 100) == [Entry(seal_1(site_key(), record)) for record in grown]
    fence = claims.claim(run, "host")
    assert fence == 2
    state = store.load(store.run_named(run.run_id), fence)
    assert (state.step, state.digest) == (STEPS, digest_of(seal_1(site_key(), grown[-1])))
    assert state.leases.sources[0].epoch == 2
    assert state.leases.orphans == [Unit(2, 0, 100, 104)], "under the mark and in no update"
    noor = Owned(Machine.objects.get(person__username="Noor"), site_key())
    record = next_record(run, (noor, (Unit(2, 0, 100, 102),)))
    assert store.commit(run, sealed(record), record, duration_s=1, attempts=1) == "committed"
    assert audit(run) == {**audit(run), "steps": STEPS + 1, "faults": []}
    assert run.daily.filter(person__username="Noor").aggregate(n=Sum("samples"))["n"] == 70 + 2
    assert list(settled_units(run))[-1] == Unit(2, 0, 0, 102)


def test_pages_show_what_they_showed(grown: list[Record]) -> None:
    newest()
    run = store.run_named(Run.objects.get().run_id)
    board = standings.leaderboard(run)
    assert [(hand.name, hand.samples, hand.rounds, hand.machines) for hand in board] == [
        ("Teo", 280, 70, 2),
        ("Noor", 70, 35, 1),
    ]
    assert standings.totals(run) == (2, 3, 350, 7 * 350)
    given = run.daily.values_list("person__username").annotate(samples_given=Sum("samples"))
    assert dict(given) == {"Teo": 280, "Noor": 70}, "summed up from the ledger"
    assert void_rounds(run) == 7
    assert [line.text for line in activity(run) if line.kind == "step"] == [f"step {at}" for at in range(70, 64, -1)]
    assert run.activity.filter(kind="step").count() == 64


def test_a_move_that_was_interrupted_goes_on(grown: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    move = importlib.import_module("runs.migrations.0008_move_records")
    monkeypatch.setattr(move, "BATCH", 20)
    whole, calls = move.EMPTY, iter(range(3))
    cursor = type(connection.cursor())
    original = cursor.execute

    def failing(self: Any, statement: Any, *rest: Any) -> Any:
        if statement is whole and next(calls) == 2:
            raise RuntimeError("the power is cut")
        return original(self, statement, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(cursor, "execute", failing)
        with pytest.raises(RuntimeError, match="power"):
            newest()
    assert SealedRecord.objects.count() == 40
    newest()
    run = Run.objects.get()
    assert store.sealed_from(run, 1, 100) == [Entry(seal_1(site_key(), record)) for record in grown]
