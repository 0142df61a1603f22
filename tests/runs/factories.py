"""Ready-made rows: people, a volunteer's machine, and a run that can be joined."""

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.cache import cache
from django.core.management import call_command
from django.db import connections, transaction
from django.db.utils import load_backend

from accounts.models import Machine, Person
from accounts.services import issue_credential
from config.environment import postgresql
from peer_agent.protocol.credentials import Role, Signed, public_bytes
from peer_agent.protocol.identifiers import ANY_RUN
from peer_agent.protocol.log.records import GENESIS, Entry
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.site_work.intake.verdict import Verdict
from runs import processes, storage
from runs.datasets.services import preparation_of
from runs.ledger.records import keep_sealed
from runs.ledger.totals import add_to_day, add_to_totals
from runs.models import Dataset, Head, LedgerEntry, LogEntry, Run, Shard, Snapshot
from tests.warm.client import Warm, bootstrap
from web.api.identity import encoded

# The fixtures that each room's conftest.py imports by `*`.
__all__ = [
    "_forked_children",
    "any_database",
    "data_folder",
    "laptop",
    "migrated_postgres",
    "operator",
    "organizer",
    "run",
    "stranger",
    "volunteer",
]

PASSWORD = "seven calm otters"
ELEMENTS = 64
LAYOUT = '{"pieces":[["w",[8,8],0]],"elements":64}'
VECTORS = ("parameters", "moment1", "moment2")
RECIPE = CausalLM(model=Model(context=8), target_batch=4, micro_batch=2, target_steps=100)


@dataclass
class Owned:
    machine: Machine
    key: Ed25519PrivateKey

    def credential(self, run: Run | None, role: Role = Role.TRAINER, *, now: int) -> dict[str, str]:
        """Return the HTTP header with a credential for a run, or for all runs."""
        signed = issue_credential(machine=self.machine, run=run.run_id if run else ANY_RUN, role=role, now=now)
        return {"Authorization": f"Credential {encoded(signed)}"}


def owned(person: Person, name: str = "laptop", kind: Machine.Kind = Machine.Kind.AGENT) -> Owned:
    key = Ed25519PrivateKey.generate()
    return Owned(Machine.objects.create(person=person, name=name, public_key=public_bytes(key), kind=kind), key)


def draft(organizer: Person, **changes: Any) -> Run:
    dataset = Dataset.objects.create(
        organizer=organizer,
        title="Proverbs",
        licence="CC0",
        filename="proverbs.txt",
        size=4000,
        sha256="a" * 64,
        state=Dataset.State.READY,
        vocab=RECIPE.vocab,
        preparation=preparation_of(RECIPE),
        tokens=1000,
        characters=4000,
        unigram_entropy=6.1,
        folder=f"datasets/{uuid.uuid4().hex}/prepared",
    )
    shard = b"tokens of a shard"
    digest = hashlib.sha256(shard).hexdigest()
    path = storage.shard_path(dataset, digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(shard)
    Shard.objects.create(dataset=dataset, position=0, digest=digest, tokens=1000)
    facts = {
        "slug": "proverbs",
        "title": "A model of proverbs",
        "organizer": organizer,
        "dataset": dataset,
        "recipe": encode_recipe(RECIPE).decode(),
    }
    run = Run.objects.create(**{**facts, **changes})
    Head.objects.create(run=run)
    return run


def understood(dataset: Dataset, **facts: Any) -> str:
    """Store a verdict with these facts on prepared data. Return the mark that is needed to publish the run."""
    dataset.verdict = msgspec.to_builtins(Verdict(**facts))
    dataset.save(update_fields=["verdict"])
    return dataset.mark


def pictured(dataset: Dataset, *shown: str, **facts: Any) -> None:
    """Store a verdict on images, with a picture of each class that is `shown`."""
    understood(dataset, format="images in folders", classes=dict.fromkeys(shown, 12), **facts)
    folder = storage.prepared_folder(dataset) / "pictures"
    folder.mkdir()
    for number, label in enumerate(sorted(set(shown))):
        (folder / f"{number}-{number}.png").write_bytes(label.encode())


def opened(organizer: Person, **changes: Any) -> Run:
    run = draft(organizer, **{"state": Run.State.OPEN, "elements": ELEMENTS, **changes})
    content = state_bytes(step=0, index=0, log_digest=GENESIS)
    file = hashlib.sha256(content).hexdigest()
    path = storage.snapshot_path(run, file)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    facts = {"state_digest": "0" * 16, "file": file, "size": len(content), "state": Snapshot.State.VERIFIED}
    Snapshot.objects.create(run=run, index=0, step=0, **facts)
    return run


def committed(run: Run, *parts: tuple[Machine, int], loss: float = 5.0, state_digest: str = "") -> LogEntry:
    head = Head.objects.get(run=run)
    head.index += 1
    head.step += 1
    head.digest = hashlib.sha256(f"{run.pk}{head.index}".encode()).hexdigest()
    head.save()
    samples = sum(amount for _, amount in parts)
    entry = LogEntry.objects.create(
        run=run,
        index=head.index,
        step=head.step,
        digest=head.digest,
        loss=loss,
        tokens=8 * samples,
        samples=samples,
        peers=len(parts),
        duration_s=1.5,
        attempts=1,
        exact=True,
        state_digest=state_digest,
    )
    keep_sealed(entry, Entry(Signed(b"record", b"s" * 64)))
    rows = [
        LedgerEntry(
            run=run,
            entry=entry,
            step=head.step,
            person=machine.person,
            machine=machine,
            samples=amount,
            tokens=8 * amount,
            credit=8 * amount * ELEMENTS,
            weight=8 * amount,
        )
        for machine, amount in parts
    ]
    LedgerEntry.objects.bulk_create(rows)
    add_to_totals(run, rows)
    add_to_day(run, rows, entry.at)
    run.refresh_from_db()
    return entry


def state_bytes(
    *, step: int, index: int, log_digest: str, elements: int = ELEMENTS, layout: str = LAYOUT, **vectors: Any
) -> bytes:
    """Return a replica's state in the canonical form that agents upload. `vectors` replace its constant vectors."""
    size = 4 * elements
    header: dict[str, Any] = {
        "__metadata__": {"step": str(step), "index": str(index), "log_digest": log_digest, "layout": layout}
    }
    for place, name in enumerate(VECTORS):
        offsets = [size * place, size * (place + 1)]
        header[name] = {"dtype": "F32", "shape": [elements], "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    values = [vectors.get(name, np.full(elements, place, "<f4")).tobytes() for place, name in enumerate(VECTORS)]
    return len(text).to_bytes(8, "little") + text + b"".join(values)


def state_file(path: Path, **facts: Any) -> Path:
    path.write_bytes(state_bytes(**facts))
    return path


# Fixtures that each room's conftest.py imports


@pytest.fixture(autouse=True)
def data_folder(settings: Any, tmp_path: Path) -> Path:
    """Give this test its own keys, storage and cache."""
    cache.clear()
    settings.DATA = tmp_path / "data"
    settings.DOWNLOADS = tmp_path / "download"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.WHITENOISE_AUTOREFRESH = True  # otherwise each new client hashes all static files
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _forked_children(warm: Warm | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the site's child processes from a process that has already loaded torch. End-to-end tests start the real
    program.
    """
    if warm is not None:
        monkeypatch.setattr(processes, "BOOTSTRAP", bootstrap(warm.socket))


@pytest.fixture
def organizer(db: None) -> Person:
    return Person.objects.create_user("Amina", PASSWORD)


@pytest.fixture
def volunteer(db: None) -> Person:
    return Person.objects.create_user("Teo", PASSWORD)


@pytest.fixture
def stranger(db: None) -> Person:
    return Person.objects.create_user("Noor", PASSWORD)


@pytest.fixture
def operator(db: None) -> Person:
    return Person.objects.create_superuser("Ines", PASSWORD)


@pytest.fixture
def laptop(volunteer: Person) -> Owned:
    return owned(volunteer)


@pytest.fixture
def run(organizer: Person, data_folder: Path) -> Run:
    return opened(organizer)


# The same services on both databases


@contextmanager
def default_database(url: str) -> Iterator[None]:
    handler: Any = connections
    described = handler.configure_settings({"default": postgresql(url)})["default"]
    before, other = handler["default"], load_backend(described["ENGINE"]).DatabaseWrapper(described, "default")
    handler["default"] = other
    try:
        yield
    finally:
        other.close()
        other.close_pool()
        handler["default"] = before


@pytest.fixture(scope="session")
def migrated_postgres(postgres_url: str, django_db_blocker: Any) -> str:
    name = f"contract_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    url = postgres_url.replace("/postgres?", f"/{name}?", 1)
    with django_db_blocker.unblock(), default_database(url):
        call_command("migrate", verbosity=0)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest, db: None, django_db_blocker: Any) -> Iterator[str]:
    """Run the test once on each database, and roll back everything it writes.

    The parameter `db` is needed for both: pytest-django creates a database only if a test requests one.
    """
    if request.param == "sqlite":
        yield "sqlite"
        return
    url = request.getfixturevalue("migrated_postgres")
    with django_db_blocker.unblock(), default_database(url), transaction.atomic():
        yield "postgresql"
        transaction.set_rollback(True)
