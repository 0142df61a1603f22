"""Checkpoints on the Hub during a run, with a real model, child process and client, against a strict double of the
Hub.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import Person
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.publishing.tokenizer import save_tokenizer, train_tokenizer
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.training.replica import Replica
from runs import processes, storage
from runs.models import Publication, Release, Run, Snapshot
from runs.releases import checkpoints, publishing
from runs.snapshots import retention, verification
from tests.jobs.requests import do, requested_kinds
from tests.publishing.hub_double import Hub, running_hub
from tests.runs.factories import RECIPE, committed, owned

TOKEN = "hf_of_amina"


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.account("amina", TOKEN)
        settings.HUB_ENDPOINT = hub.url
        yield hub


@pytest.fixture
def training(run: Run, tmp_path: Path) -> Run:
    preparation = TextPreparation(300)
    tokenizer = train_tokenizer(iter(["many hands make light work " * 9]), preparation)
    save_tokenizer(tokenizer, storage.tokenizer_folder(run.dataset), sentences=False)
    recipe = RECIPE.__class__(**{**{n: getattr(RECIPE, n) for n in RECIPE.__struct_fields__}, "vocab": 300})
    Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(recipe).decode())
    Replica(recipe).save(tmp_path / "state.safetensors")
    run.refresh_from_db()
    return run


def snapshot_at(run: Run, step: int, folder: Path, *, state: str = Snapshot.State.VERIFIED) -> Snapshot:
    """Commit steps up to `step`, and store a snapshot of that step. All such snapshots have the same bytes."""
    machine = run.organizer.machines.first() or owned(run.organizer).machine
    while run.log.count() < step:
        committed(run, (machine, 4))
    source = folder / "state.safetensors"
    file = hashlib.sha256(source.read_bytes()).hexdigest()
    path = storage.snapshot_path(run, file)
    if not path.exists():
        shutil.copyfile(source, path)
    facts = {"state_digest": "0" * 16, "file": file, "size": 1, "state": state}
    return Snapshot.objects.create(run=run, index=step, step=step, digest=run.log.get(step=step).digest, **facts)


def ask(run: Run, every: int, **changes: Any) -> Publication:
    publishing.save_token(person=run.organizer, token=TOKEN)
    asked = {"repository": "amina/proverbs", "private": False, "replace": False, "checkpoint_every": every, **changes}
    publishing.ask_to_publish(run=run, **asked)
    return Publication.objects.get(run=run)


def is_due() -> bool:
    return checkpoints.due(Publication.objects.select_related("run").get()) is not None


def test_the_newest_one_is_sent_once_it_is_due(hub: Hub, training: Run, tmp_path: Path) -> None:
    ask(training, 4)
    assert requested_kinds() == [Kind.PUBLISH_RELEASE, Kind.PUBLISH_CHECKPOINT]
    snapshot_at(training, 2, tmp_path)
    assert checkpoints.push_checkpoint(training.pk) is None
    assert not hub.repositories
    snapshot_at(training, 4, tmp_path)
    snapshot_at(training, 6, tmp_path)
    assert is_due()
    assert checkpoints.push_checkpoint(training.pk) is None
    publication = Publication.objects.get()
    assert (publication.checkpoint_step, publication.checkpoint_fault) == (6, "")
    assert publication.checkpoint_url == f"{hub.url}/amina/proverbs"
    assert publication.state == "waiting", "the release is still to come"
    repository = hub.repositories["amina/proverbs"]
    assert publication.commit == repository.head
    card = repository.commits[-1][1]["README.md"].content.decode()
    assert "the model after step 6" in " ".join(card.split())
    assert {"config.json", "model.safetensors", "tokenizer.json", "SHA256SUMS"} <= set(repository.commits[-1][1])
    snapshot_at(training, 7, tmp_path)
    assert not is_due()
    snapshot_at(training, 8, tmp_path)
    assert checkpoints.push_checkpoint(training.pk) is None
    assert Publication.objects.get().checkpoint_step == 8
    assert repository.titles[repository.head] == "Manyhands: proverbs, step 8"


def test_each_may_have_a_branch(hub: Hub, training: Run, tmp_path: Path) -> None:
    hub.put("amina/proverbs", README_md=b"# mine")
    ask(training, 2, in_branches=True, private=True)
    for step in (2, 4):
        snapshot_at(training, step, tmp_path)
        assert checkpoints.push_checkpoint(training.pk) is None
    publication, repository = Publication.objects.get(), hub.repositories["amina/proverbs"]
    assert publication.checkpoint_url == f"{hub.url}/amina/proverbs/tree/step-4"
    assert set(repository.branches) == {"step-2", "step-4"}
    assert b"step 2" in repository.branches["step-2"][-1][1]["README.md"].content
    assert repository.commits[-1][1]["README.md"].content == b"# mine"
    assert publication.commit == ""


def test_what_nobody_has_verified_stays_here(hub: Hub, training: Run, tmp_path: Path) -> None:
    ask(training, 2)
    snapshot_at(training, 2, tmp_path, state=Snapshot.State.ADMITTED)
    assert checkpoints.push_checkpoint(training.pk) is None
    assert not hub.repositories


@pytest.mark.parametrize("state", [Run.State.FINISHING, Run.State.FINISHED, Run.State.DRAFT])
def test_a_run_that_does_not_train_has_none(hub: Hub, training: Run, tmp_path: Path, state: str) -> None:
    ask(training, 2)
    snapshot_at(training, 2, tmp_path)
    Run.objects.filter(pk=training.pk).update(state=state)
    assert checkpoints.push_checkpoint(training.pk) is None
    assert not hub.repositories


def test_nor_one_of_which_a_release_is_made(hub: Hub, training: Run, tmp_path: Path) -> None:
    ask(training, 2)
    snapshot_at(training, 2, tmp_path)
    Release.objects.create(run=training)
    assert not is_due()


def test_a_checkpoint_that_was_sent_is_not_sent_again(hub: Hub, training: Run, tmp_path: Path) -> None:
    ask(training, 2)
    snapshot_at(training, 2, tmp_path)
    for _ in range(2):
        assert do(Kind.PUBLISH_CHECKPOINT, training.pk) is None
        titles = list(hub.repositories["amina/proverbs"].titles.values())
        assert titles.count("Manyhands: proverbs, step 2") == 1


def test_a_snapshot_that_is_verified_has_its_turn(training: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify_next", lambda *_, **__: verification.Outcome.MORE)
    assert do(Kind.VERIFY_SNAPSHOTS, training.pk) == Later(0.0)
    assert Kind.PUBLISH_CHECKPOINT in requested_kinds()


class TestFailures:
    @pytest.mark.check  # the client's own retries take eight seconds
    def test_a_hub_that_is_away_is_asked_later(self, hub: Hub, training: Run, tmp_path: Path, settings: Any) -> None:
        ask(training, 2)
        snapshot_at(training, 2, tmp_path)
        settings.HUB_ENDPOINT = "http://127.0.0.1:9"
        later = do(Kind.PUBLISH_CHECKPOINT, training.pk)
        publication = Publication.objects.get()
        assert publication.checkpoint_fault.startswith("E346")
        assert later == Later(fault=publication.checkpoint_fault)
        settings.HUB_ENDPOINT = hub.url
        assert checkpoints.push_checkpoint(training.pk) is None
        publication.refresh_from_db()
        assert (publication.checkpoint_step, publication.checkpoint_fault, publication.failing_since) == (2, "", None)

    def test_a_long_failure_is_told_once(self, hub: Hub, training: Run, tmp_path: Path, settings: Any) -> None:
        publication = ask(training, 2)
        settings.HUB_ENDPOINT = "http://127.0.0.1:9"
        publishing.note_failing(publication)
        assert not training.activity.filter(kind="unpublished").exists()
        since = timezone.now() - publishing.LONG
        Publication.objects.filter(pk=publication.pk).update(failing_since=since)
        for _ in range(3):
            publishing.note_failing(publication)
        assert training.activity.filter(kind="unpublished").count() == 1

    def test_somebody_elses_files_need_the_tick(self, hub: Hub, training: Run, tmp_path: Path) -> None:
        hub.put("amina/proverbs", README_md=b"# mine")
        ask(training, 2)
        snapshot_at(training, 2, tmp_path)
        assert checkpoints.push_checkpoint(training.pk) is None
        assert Publication.objects.get().checkpoint_fault.startswith("E345")
        assert ask(training, 2, replace=True).checkpoint_fault == ""
        assert checkpoints.push_checkpoint(training.pk) is None
        assert Publication.objects.get().checkpoint_step == 2

    def test_a_worker_that_dies_after_the_commit_goes_on_from_it(
        self, hub: Hub, training: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The row names no commit, but the site still recognizes its commit on the Hub."""
        ask(training, 2)
        snapshot_at(training, 2, tmp_path)
        with monkeypatch.context() as dying:
            dying.setattr(checkpoints, "_published", lambda *_: None)
            assert checkpoints.push_checkpoint(training.pk) is None
        assert Publication.objects.get().commit == ""
        snapshot_at(training, 4, tmp_path)
        assert checkpoints.push_checkpoint(training.pk) is None
        assert (Publication.objects.get().checkpoint_step, Publication.objects.get().checkpoint_fault) == (4, "")

    def test_another_place_asked_for_meanwhile_wins(
        self, hub: Hub, training: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask(training, 2)
        snapshot_at(training, 2, tmp_path)
        run_child = processes.run_child

        def meanwhile(*arguments: Any, **more: Any) -> Any:
            ask(training, 2, repository="amina/other")
            return run_child(*arguments, **more)

        monkeypatch.setattr(checkpoints, "run_child", meanwhile)
        checkpoints.push_checkpoint(training.pk)
        assert (Publication.objects.get().checkpoint_step, Publication.objects.get().commit) == (0, "")

    def test_a_snapshot_that_is_thinned_out_is_no_longer_due(self, hub: Hub, training: Run, tmp_path: Path) -> None:
        ask(training, 2)
        Snapshot.objects.filter(pk=snapshot_at(training, 2, tmp_path).pk).update(is_stored=False)
        retention.thin_snapshots(training.pk)
        assert checkpoints.push_checkpoint(training.pk) is None
        assert not hub.repositories


def test_only_runs_with_a_schedule_are_looked_at(hub: Hub, training: Run, tmp_path: Path, organizer: Person) -> None:
    ask(training, 0)
    assert requested_kinds() == [Kind.PUBLISH_RELEASE]
    snapshot_at(training, 2, tmp_path)
    assert not is_due()
    assert checkpoints.push_checkpoint(training.pk) is None
