"""Visitors try released models: supported models, concurrent visitors, real output, and stored data."""

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from django.db import IntegrityError, transaction
from django.utils import timezone
from safetensors.torch import load_file

from jobs.queue import Kind, Lane
from jobs.runner import do_next
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.masked_lm import MaskedLM
from runs import storage
from runs.models import Release, Run, Trial
from runs.processes import ChildStopped
from runs.releases import trials
from tests.jobs.requests import do, requested
from tests.recipes.finetune_lora.small_base import model_folder

pytestmark = pytest.mark.django_db

RTL_AND_MARKUP = '<b>\u05e9\u05dc\u05d5\u05dd</b> \u202e& "quotes"\n'


@pytest.fixture
def released(run: Run) -> Run:
    """Return a finished run of a small model, without the files that a child process needs."""
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
    Release.objects.create(run=run, state=Release.State.READY, folder="released", step=1)
    run.refresh_from_db()
    return run


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """Replace child processes with functions that answer at once. Return their arguments and prompts."""
    told: list[tuple[list[str], str]] = []

    def run_child(arguments: Sequence[str], *, secret: str, **_: Any) -> dict[str, Any]:
        told.append((list(arguments), secret))
        return {"text": f" after {secret}", "is_whole": True}

    monkeypatch.setattr(trials, "run_child", run_child)
    return told


def fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run_child(*_: Any, **__: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(trials, "run_child", run_child)


def large(layers: int) -> str:
    """Return a recipe with about `layers` times 12.6 million parameters."""
    return encode_recipe(CausalLM(model=Model(layers=layers, width=1024, heads=4, context=64), vocab=300)).decode()


class TestWho:
    def test_small_ones_can_unless_their_organizer_says_no(self, run: Run) -> None:
        assert (trials.is_allowed(run), trials.may_be_allowed(run)) == (True, True)
        for allowed in (False, True):
            trials.set_allowed(run=run, allowed=allowed)
            run.refresh_from_db()
            assert (trials.is_allowed(run), trials.may_be_allowed(run)) == (allowed, True)

    def test_larger_ones_can_where_their_organizer_says_so(self, run: Run) -> None:
        run.recipe = large(layers=5)
        assert trials.SMALL < trials.size_of(run) < 100_000_000
        assert not trials.is_allowed(run)
        run.can_be_tried = True
        assert trials.is_allowed(run)

    @pytest.mark.parametrize("most", [0, 10_000])
    def test_none_can_that_are_above_the_operators_limit(self, run: Run, settings: Any, most: int) -> None:
        settings.TRY_PARAMETERS, run.can_be_tried = most, True
        assert (trials.is_allowed(run), trials.may_be_allowed(run)) == (False, False)

    def test_what_does_not_write_cannot(self, run: Run) -> None:
        run.recipe, run.can_be_tried = encode_recipe(MaskedLM()).decode(), True
        assert not trials.is_allowed(run)

    def test_nothing_is_tried_before_there_is_a_release(self, run: Run) -> None:
        assert trials.release_to_try(run) is None
        Release.objects.create(run=run)
        assert trials.release_to_try(run) is None
        Release.objects.update(state=Release.State.READY)
        assert trials.release_to_try(run) is not None


class TestQueue:
    def test_one_at_a_time_of_everybody(self, released: Run) -> None:
        first = trials.ask(run=released, asker="a", prompt="one")
        with pytest.raises(trials.NotNow, match="One text at a time"):
            trials.ask(run=released, asker="a", prompt="two")
        second = trials.ask(run=released, asker="b", prompt="three")
        assert requested() == [(Kind.WRITE_TRIAL, trial.pk.hex) for trial in (first, second)]
        with pytest.raises(IntegrityError), transaction.atomic():  # a second process may not have seen the first row
            Trial.objects.create(run=released, asker="a", prompt="", slot=9)

    def test_so_many_of_the_whole_site(self, released: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trials, "MOST_WAITING", 3)
        for name in "abc":
            trials.ask(run=released, asker=name, prompt="")
        assert set(trials.waiting().values_list("slot", flat=True)) == {0, 1, 2}
        with pytest.raises(trials.NotNow, match="The queue is full: no more than 3 texts"):
            trials.ask(run=released, asker="d", prompt="")
        trials.waiting().filter(asker="b").update(slot=None)
        assert trials.ask(run=released, asker="d", prompt="").slot is not None

    def test_who_was_slower_by_a_moment_is_told(self, released: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another process took the slot between this request's check and its write."""
        monkeypatch.setattr("runs.releases.trials.secrets.choice", lambda _: 0)
        trials.ask(run=released, asker="a", prompt="")
        with pytest.raises(trials.NotNow, match="faster"):
            trials.ask(run=released, asker="b", prompt="")

    def test_the_one_that_waited_longest_is_next(self, released: Run, children: list[Any]) -> None:
        first, second = (trials.ask(run=released, asker=name, prompt=name) for name in "ab")
        assert (trials.before(first), trials.before(second)) == (0, 1)
        assert do_next(Lane.TRY)
        assert [secret for _, secret in children] == ["a"]
        assert trials.before(second) == 0

    def test_a_trial_that_expired_is_not_written(self, released: Run, children: list[Any]) -> None:
        trial = trials.ask(run=released, asker="a", prompt="")
        trials.forget_old(timezone.now() + trials.KEPT + timedelta(seconds=9))
        assert do(Kind.WRITE_TRIAL, trial.pk) is None
        assert children == []

    def test_nothing_is_kept_for_long(self, released: Run) -> None:
        """Finished trials and trials that never ran both expire. The latter also free their slot."""
        now = timezone.now()
        old = Trial.objects.create(run=released, asker="a", prompt="", slot=1, asked_at=now - trials.KEPT * 2)
        done = Trial.objects.create(run=released, asker="b", prompt="", asked_at=now)
        trials.ask(run=released, asker="a", prompt="")
        assert not Trial.objects.filter(pk=old.pk).exists()
        trials.forget_old(now + trials.KEPT - timedelta(seconds=1))
        assert Trial.objects.filter(pk=done.pk).exists()
        trials.forget_old(now + trials.KEPT + timedelta(seconds=9))
        assert not Trial.objects.exists()

    def test_nobody_can_read_who_asked(self) -> None:
        digest = trials.asker_digest("address 192.0.2.7")
        assert len(digest) == 64
        assert digest == trials.asker_digest("address 192.0.2.7") != trials.asker_digest("address 192.0.2.8")


class TestWriting:
    def test_it_is_written_once_within_bounds(self, released: Run, children: list[tuple[list[str], str]]) -> None:
        trial = trials.ask(run=released, asker="a", prompt=RTL_AND_MARKUP)
        for _ in range(2):
            assert do(Kind.WRITE_TRIAL, trial.pk) is None
        ((command, prompt),) = children
        assert prompt == RTL_AND_MARKUP
        assert command[:3] == ["write", str(storage.root() / "released"), f"--tokens={trials.MOST_TOKENS}"]
        assert not any(RTL_AND_MARKUP in word for word in command), "no list of processes shows it"
        trial.refresh_from_db()
        assert (trial.text, trial.slot, trial.fault) == (f" after {RTL_AND_MARKUP}", None, "")

    def test_what_is_kept_has_a_bound_and_no_nul(self, released: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        made = {"text": "a\0" + "x" * 9000, "is_whole": False}
        monkeypatch.setattr(trials, "run_child", lambda *_, **__: made)
        trial = trials.ask(run=released, asker="a", prompt="")
        trials.write(trial.pk)
        trial.refresh_from_db()
        assert (trial.text[:2], len(trial.text), trial.is_whole) == ("a\ufffd", trials.LONGEST_TEXT, False)

    @pytest.mark.parametrize("error", [Problem.of("E327", reason="it was killed"), RuntimeError("/a/folder")])
    def test_what_goes_wrong_is_told_and_frees_the_slot(
        self, released: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        fails(monkeypatch, error)
        trial = trials.ask(run=released, asker="a", prompt="")
        trials.write(trial.pk)
        trial.refresh_from_db()
        assert trial.fault.startswith("E327")
        assert "/a/folder" not in trial.fault
        assert trial.slot is None

    def test_a_model_that_can_no_longer_be_tried_is_told(self, released: Run, children: list[Any]) -> None:
        trial = trials.ask(run=released, asker="a", prompt="")
        trials.set_allowed(run=released, allowed=False)
        trials.write(trial.pk)
        trial.refresh_from_db()
        assert (trial.fault[:4], trial.slot, children) == ("E315", None, [])

    def test_trial_of_a_stopped_worker_is_written_after_restart(
        self, released: Run, monkeypatch: pytest.MonkeyPatch, children: list[Any]
    ) -> None:
        writes = vars(trials)["run_child"]
        fails(monkeypatch, ChildStopped())
        trial = trials.ask(run=released, asker="a", prompt="one")
        trials.write(trial.pk)
        trial.refresh_from_db()
        assert (trial.is_waiting, trial.fault) == (True, "")
        monkeypatch.setattr(trials, "run_child", writes)
        trials.write(trial.pk)
        trial.refresh_from_db()
        assert trial.text == " after one"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_real_child_writes_with_a_real_model(released: Run, tmp_path: Path, family: str) -> None:
    """Prompts with markup, right-to-left letters or NUL arrive unchanged. Prompts that are too long are cut."""
    folder = model_folder(tmp_path / "base", family)
    storage.root().mkdir(parents=True, exist_ok=True)
    folder.rename(storage.root() / "released")
    for prompt, is_whole in (("<b>\u05e9", True), ("a\0\u202e&", True), ("", True), (RTL_AND_MARKUP * 3, False)):
        for _ in range(4):  # an untrained model's text may end before it begins
            trial = trials.ask(run=released, asker="a", prompt=prompt)
            trials.write(trial.pk)
            trial.refresh_from_db()
            assert (trial.fault, trial.slot, trial.is_whole) == ("", None, is_whole)
            if trial.text:
                break
        assert trial.text, prompt
        assert not trial.text.startswith("<b>"), "what comes after the prompt"


def test_a_real_child_loads_safetensors_alone_and_no_code(released: Run, tmp_path: Path) -> None:
    """Code in the model's folder is never run, and no pickle is loaded."""
    storage.root().mkdir(parents=True, exist_ok=True)
    folder = model_folder(tmp_path / "base", auto_map={"AutoModelForCausalLM": "own.Model"})
    folder = folder.rename(storage.root() / "released")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    trial = trials.ask(run=released, asker="a", prompt="Many")
    trials.write(trial.pk)
    trial.refresh_from_db()
    assert (trial.fault, bool(trial.text), (tmp_path / "ran").exists()) == ("", True, False)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    trial = trials.ask(run=released, asker="a", prompt="Many")
    trials.write(trial.pk)
    trial.refresh_from_db()
    assert trial.fault.startswith("E327")


def test_a_real_child_is_held_to_its_memory_and_its_time(
    released: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder(tmp_path / "base").rename(storage.root().parent / "model")
    storage.root().mkdir(parents=True, exist_ok=True)
    (storage.root().parent / "model").rename(storage.root() / "released")
    monkeypatch.setattr(trials, "BYTES_BESIDE", 30_000_000)
    trial = trials.ask(run=released, asker="a", prompt="Many")
    trials.write(trial.pk)
    trial.refresh_from_db()
    assert re.search(r"E469|\((OSError|ImportError)\)", trial.fault), "torch alone takes more"
    monkeypatch.undo()
    monkeypatch.setattr(trials, "TIMEOUT_S", 0.5)
    trial = trials.ask(run=released, asker="a", prompt="Many")
    trials.write(trial.pk)
    trial.refresh_from_db()
    assert "it took longer than 0.5 s" in trial.fault
