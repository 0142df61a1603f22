"""Preparing texts, runs and releases: the outcome is stored in rows, and repeating a job changes nothing."""

import errno
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connection, transaction

from accounts.models import Person
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.publishing.card import parse_facts
from runs import storage
from runs.background import request_after_start
from runs.datasets import preparation
from runs.datasets.services import preparation_of, prepare_anew, store_upload
from runs.lifecycle import drafts, services
from runs.models import Dataset, Publication, Release, Run, Shard
from runs.processes import ChildStopped
from runs.releases import card_facts, making
from runs.releases.card_facts import release_facts
from tests.coordination.engines import database, in_other_thread
from tests.coordination.hosts.test_claims import wait_for_a_lock
from tests.jobs.requests import do, forget_requests, requested, requested_kinds
from tests.runs.factories import RECIPE, Owned, committed, draft

TEXT = ("Many hands make light work. " * 400).encode()
Child = Callable[[list[str]], dict[str, Any]]
__all__ = ["database"]

MADE = {"size": 900, "ready": "Ready.", "vocab": 300, "shards": [{"digest": "d" * 64, "size": 900}]}

VERDICT = {"format": "text", "rows": 1, "findings": []}


def prepared(arguments: list[str]) -> dict[str, Any]:
    out = Path(arguments[2])
    (out / "shards").mkdir(parents=True)
    (out / "shards" / f"{'d' * 64}.safetensors").write_bytes(b"tokens")
    return {
        "vocab": 300,
        "size": 1000,
        "characters": len(TEXT),
        "shards": [{"digest": "d" * 64, "size": 900}],
        "heldout": {"digest": "e" * 64, "size": 100},
        "unigram_entropy": 5.5,
        "verdict": VERDICT,
        "ready": "The text is ready.",
    }


def initial(arguments: list[str]) -> dict[str, Any]:
    Path(arguments[2], f"{'f' * 64}.safetensors").write_bytes(b"state")
    return {"file": "f" * 64, "size": 5, "elements": 64, "state_digest": "1" * 16, "parameters": 64}


def released(arguments: list[str]) -> dict[str, Any]:
    assert parse_facts(Path(arguments[6]).read_bytes()).slug == "proverbs"
    out = Path(arguments[4])
    out.mkdir()
    (out / "proverbs.zip").write_bytes(b"model")
    return {
        "files": [{"name": "proverbs.zip", "size": 5, "sha256": "a" * 64}],
        "archive": "proverbs.zip",
        "sample": "Hi",
    }


ANSWERS: dict[str, Child] = {"prepare": prepared, "initial": initial, "release": released}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace child processes with functions that answer at once. Return the names of those that were started."""
    started: list[str] = []

    def run_child(arguments: list[str]) -> dict[str, Any]:
        started.append(arguments[0])
        return ANSWERS[arguments[0]](arguments)

    for room in (preparation, services, making):
        monkeypatch.setattr(room, "run_child", run_child)
    return started


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run_child(arguments: list[str]) -> dict[str, Any]:
        raise error

    for room in (preparation, services, making):
        monkeypatch.setattr(room, "run_child", run_child)


@pytest.fixture
def created(organizer: Person) -> Run:
    dataset = store_upload(
        organizer=organizer, title="W", licence="CC0", filename="w.txt", size=len(TEXT), chunks=[TEXT]
    )
    return services.create_run(organizer=organizer, dataset=dataset, title="Words", purpose="", recipe=RECIPE)


class TestDataset:
    def test_shards_and_facts_are_kept(self, created: Run, children: list[str]) -> None:
        preparation.prepare_dataset(created.dataset_id)
        dataset = Dataset.objects.get()
        assert (dataset.state, dataset.vocab, dataset.tokens, dataset.unigram_entropy) == ("ready", 300, 1000, 5.5)
        assert storage.shard_path(dataset, dataset.shards.get().digest).read_bytes() == b"tokens"

    def test_the_recipe_takes_the_vocabulary_that_the_text_has(self, created: Run, children: list[str]) -> None:
        preparation.prepare_dataset(created.dataset_id)
        created.refresh_from_db()
        assert created.parsed_recipe == msgspec.structs.replace(RECIPE, vocab=300)
        assert Dataset.objects.get().preparation == preparation_of(created.parsed_recipe), "it need not be cut again"

    @pytest.mark.parametrize(("is_automatic", "batch", "steps"), [(True, 4, 113), (True, 2, 226), (False, 4, 100)])
    def test_steps_that_nobody_stated_follow_from_its_size(
        self, created: Run, children: list[str], is_automatic: bool, batch: int, steps: int
    ) -> None:
        """The shard of 900 tokens holds 113 samples of 8 tokens, the last of which is shorter. Held-out tokens do not
        count.
        """
        created.automatic_steps = is_automatic
        created.recipe = encode_recipe(msgspec.structs.replace(RECIPE, target_batch=batch)).decode()
        created.save()
        preparation.prepare_dataset(created.dataset_id)
        created.refresh_from_db()
        assert created.parsed_recipe.target_steps == steps
        line = created.activity.get(kind="prepared").text
        assert (f"The run is set to {steps} steps." in line) == is_automatic

    def test_the_verdict_is_kept_and_another_one_changes_the_mark(self, created: Run, children: list[str]) -> None:
        assert created.dataset.mark == ""
        preparation.prepare_dataset(created.dataset_id)
        dataset = Dataset.objects.get()
        assert dataset.verdict == VERDICT
        mark, dataset.verdict = dataset.mark, VERDICT | {"rows": 2}
        assert len({"", mark, dataset.mark}) == 3

    def test_each_source_is_read_by_its_name_and_field(self, created: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file's name may look like an option."""
        Dataset.objects.update(filename="--out.csv", field="text")
        started: list[list[str]] = []

        def run_child(arguments: list[str]) -> dict[str, Any]:
            started.append(arguments)
            return prepared(arguments)

        monkeypatch.setattr(preparation, "run_child", run_child)
        preparation.prepare_dataset(created.dataset_id)
        assert started[0][-2:] == ["--name=--out.csv", "--field=text"]

    def test_doing_it_twice_does_it_once(self, created: Run, children: list[str]) -> None:
        for _ in range(2):
            preparation.prepare_dataset(created.dataset_id)
        assert children == ["prepare"]
        assert Dataset.objects.get().shards.count() == 1

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (Problem.of("E303"), "E303"),
            (FileNotFoundError(2, "No such file", "/srv/hands/text"), "E309"),
            (OSError(errno.ENOSPC, "No space left on device", "/srv/hands/out"), "E328"),
            (Problem.of("E106", path="/srv/hands/out", reason="No space left on device"), "E328"),
        ],
    )
    def test_a_fault_is_told_on_the_page(
        self, created: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
    ) -> None:
        failing(monkeypatch, error)
        preparation.prepare_dataset(created.dataset_id)
        created.refresh_from_db()
        assert (created.dataset.state, created.dataset.fault_code) == ("failed", code)
        assert code in created.waiting_for
        assert "/srv" not in created.waiting_for, "everybody reads it"

    def test_text_below_one_sample_is_too_short_to_open_a_run(
        self, created: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preparation, "run_child", lambda arguments: prepared(arguments) | {"size": 7})
        preparation.prepare_dataset(created.dataset_id)
        created.refresh_from_db()
        assert (created.dataset.state, created.dataset.fault_code) == ("failed", "E317")
        assert "E317: This dataset is too small: it has 7 tokens" in created.waiting_for
        with pytest.raises(Problem, match="E317"):
            services.open_run(run=created, seen="")

    def test_a_run_that_waits_for_its_data_is_prepared_next(self, created: Run, children: list[str]) -> None:
        forget_requests()
        assert do(Kind.PREPARE_DATASET, created.dataset_id) is None
        assert requested() == [], "it is a draft"
        Run.objects.update(state=Run.State.PREPARING)
        assert do(Kind.PREPARE_DATASET, created.dataset_id) is None
        assert requested() == [(Kind.PREPARE_RUN, created.pk.hex)]

    def test_another_vocabulary_asked_for_meanwhile_wins(
        self, created: Run, monkeypatch: pytest.MonkeyPatch, children: list[str]
    ) -> None:
        recipe = msgspec.structs.replace(RECIPE, vocab=400)

        def changing(arguments: list[str]) -> dict[str, Any]:
            drafts.change_draft(run=created, recipe=recipe, licence="CC0")
            Dataset.objects.update(state="preparing")  # as another worker would set it
            return prepared(arguments)

        with monkeypatch.context() as patch:
            patch.setattr(preparation, "run_child", changing)
            preparation.prepare_dataset(created.dataset_id)
        dataset = Dataset.objects.get()
        assert (dataset.state, dataset.preparation, dataset.shards.count()) == ("preparing", preparation_of(recipe), 0)

    def test_another_field_chosen_meanwhile_wins(
        self, created: Run, monkeypatch: pytest.MonkeyPatch, children: list[str]
    ) -> None:
        def changing(arguments: list[str]) -> dict[str, Any]:
            drafts.choose_field(run=created, source=created.dataset_id, field="text")
            Dataset.objects.update(state="preparing")  # as another worker would set it
            return prepared(arguments)

        Dataset.objects.update(verdict={"fields": [{"name": "text"}]})
        with monkeypatch.context() as patch:
            patch.setattr(preparation, "run_child", changing)
            preparation.prepare_dataset(created.dataset_id)
        dataset = Dataset.objects.get()
        assert (dataset.state, dataset.field, dataset.shards.count()) == ("preparing", "text", 0)

    def test_of_a_draft_that_is_deleted_meanwhile_nothing_is_left(
        self, created: Run, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
    ) -> None:
        def deleting(arguments: list[str]) -> dict[str, Any]:
            with django_capture_on_commit_callbacks(execute=True):
                drafts.delete_draft(run=created)
            return prepared(arguments)

        monkeypatch.setattr(preparation, "run_child", deleting)
        preparation.prepare_dataset(created.dataset_id)
        assert not Dataset.objects.exists()
        assert not [path for path in storage.root().rglob("*") if path.is_file()]

    def test_a_site_that_goes_down_is_no_fault(self, created: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        failing(monkeypatch, ChildStopped())
        preparation.prepare_dataset(created.dataset_id)
        assert Dataset.objects.get().state == "preparing"


class TestRun:
    def test_the_snapshot_of_step_0_opens_the_run(self, created: Run, children: list[str]) -> None:
        preparation.prepare_dataset(created.dataset_id)
        services.open_run(run=created, seen=Dataset.objects.get().mark)
        services.prepare_run(created.pk)
        created.refresh_from_db()
        snapshot = created.snapshots.get()
        assert (created.state, created.elements) == ("open", 64)
        assert (snapshot.index, snapshot.step, snapshot.digest) == (0, 0, "0" * 64)
        assert storage.snapshot_path(created, snapshot.file).exists()

    def test_a_run_that_nobody_opened_stays_a_draft(self, created: Run, children: list[str]) -> None:
        preparation.prepare_dataset(created.dataset_id)
        services.prepare_run(created.pk)
        created.refresh_from_db()
        assert (created.state, children) == ("draft", ["prepare"])

    def test_a_text_that_turned_out_too_short_sends_it_back(self, created: Run, children: list[str]) -> None:
        preparation.prepare_dataset(created.dataset_id)
        services.open_run(run=created, seen=Dataset.objects.get().mark)
        created.dataset.shards.update(tokens=10)
        services.prepare_run(created.pk)
        created.refresh_from_db()
        assert created.state == "draft"
        assert "E307" in created.waiting_for


class TestRelease:
    def test_it_finishes_the_run(self, run: Run, laptop: Owned, children: list[str]) -> None:
        committed(run, (laptop.machine, 4))
        services.finish_run(run=run)
        assert requested() == [(kind, run.pk.hex) for kind in (Kind.ARCHIVE_LOG, Kind.MAKE_RELEASE)]
        assert do(Kind.MAKE_RELEASE, run.pk) is None
        run.refresh_from_db()
        release = Release.objects.get()
        assert (run.state, release.archive, release.sample) == ("finished", "proverbs.zip", "Hi")
        assert storage.release_path(release, "proverbs.zip").read_bytes() == b"model"

    def test_its_card_says_who_vouched_for_the_text(self, run: Run, laptop: Owned, organizer: Person) -> None:
        committed(run, (laptop.machine, 4))
        at = datetime(2026, 11, 21, 5, 30, tzinfo=UTC)
        Dataset.objects.update(vouched_by=organizer, vouched_at=at)
        run.refresh_from_db()
        assert release_facts(run, run.snapshots.get()).data_vouched == "Amina, 2026-11-21"

    def test_one_that_fails_is_told_and_tried_again(
        self, run: Run, children: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        services.finish_run(run=run)
        with monkeypatch.context() as patch:
            failing(patch, Problem.of("E312", reason="no memory"))
            assert making.make_release(run.pk) == "failed"
        run.refresh_from_db()
        assert run.state == "finishing"
        assert "E312" in run.waiting_for
        assert making.make_release(run.pk) == "ready"

    def test_is_retried_while_failing_and_told_once(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        services.finish_run(run=run)
        failing(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
        for _ in range(3):
            later = do(Kind.MAKE_RELEASE, run.pk)
            assert later == Later(fault=Release.objects.get().fault)
        assert "E328" in Release.objects.get().fault
        assert run.activity.filter(kind="failed").count() == 1

    def test_it_is_made_anew_where_other_people_agree_to_be_named(
        self, run: Run, laptop: Owned, children: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committed(run, (laptop.machine, 4))
        services.finish_run(run=run)
        making.make_release(run.pk)
        first = Release.objects.get()
        assert do(Kind.REMAKE_RELEASE, run.pk) is None
        assert children == ["release"]
        card_facts.set_named(run=run, person=run.organizer, agreed=True)
        assert Kind.REMAKE_RELEASE not in requested_kinds(), "who has given nothing is on no card"
        card_facts.set_named(run=run, person=laptop.machine.person, agreed=True)
        assert requested()[-1] == (Kind.REMAKE_RELEASE, run.pk.hex)
        with monkeypatch.context() as patch:
            failing(patch, Problem.of("E312", reason="no memory"))
            later = do(Kind.REMAKE_RELEASE, run.pk)
            assert isinstance(later, Later)
            assert later.fault
        assert Release.objects.get().state == "ready"
        for _ in range(2):
            assert do(Kind.REMAKE_RELEASE, run.pk) is None
        second = Release.objects.get()
        assert children == ["release", "release"]
        assert (first.named, second.named, second.state) == ([], ["Teo"], "ready")
        assert storage.release_path(second, "proverbs.zip").exists()

    def test_what_is_on_the_hub_follows(self, run: Run, laptop: Owned, children: list[str]) -> None:
        committed(run, (laptop.machine, 4))
        services.finish_run(run=run)
        making.make_release(run.pk)
        Publication.objects.create(run=run, repository="a/b", state=Publication.State.PUBLISHED, url="https://hub/a/b")
        card_facts.set_named(run=run, person=laptop.machine.person, agreed=True)
        forget_requests()
        request_after_start()
        assert requested() == [(Kind.REMAKE_RELEASE, run.pk.hex)]
        assert do(Kind.REMAKE_RELEASE, run.pk) is None
        assert requested()[-1] == (Kind.PUBLISH_RELEASE, run.pk.hex)
        assert Publication.objects.get().state == "waiting"


def test_nothing_of_before_is_left(database: str, data_folder: Path) -> None:
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
