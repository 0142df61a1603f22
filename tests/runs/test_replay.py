"""The last state out of the log: once at a time, and told once where it fails."""

from pathlib import Path
from typing import Any

import pytest

from peer_agent.protocol.errors import Problem
from runs import replay, storage
from runs.models import Run
from tests.runs.cast import Owned, committed


@pytest.fixture
def behind(run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose newest snapshot is a step behind its log."""
    committed(run, (laptop.machine, 4), state_digest="2" * 16)
    monkeypatch.setattr(replay, "to_lines", lambda _: b"a record")
    return run


def made(arguments: list[str], run: Run) -> dict[str, Any]:
    """What `replay` answers."""
    out = Path(arguments[4])
    out.mkdir()
    (out / f"{'c' * 64}.safetensors").write_bytes(b"state")
    facts = {"index": run.head.index, "step": run.head.step, "log_digest": run.head.digest}
    return {**facts, "state_digest": "2" * 16, "file": "c" * 64, "size": 5}


def test_while_it_is_made_nobody_begins_again(behind: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host asks every minute, and a long log takes longer: the other work of the site must not wait for copies."""
    children: list[list[str]] = []

    def run_child(arguments: list[str]) -> dict[str, Any]:
        children.append(arguments)
        if len(children) < 3:
            replay.replay_log(behind.pk)
        return made(arguments, behind)

    monkeypatch.setattr(replay, "run_child", run_child)
    replay.replay_log(behind.pk)
    assert len(children) == 1
    snapshot = behind.snapshots.get(index=1)
    assert storage.snapshot_path(behind, snapshot.file).read_bytes() == b"state"
    replay.replay_log(behind.pk)
    assert len(children) == 1, "it is there"


def test_what_fails_is_told_once_and_tried_again(behind: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [Problem.of("E341", step=1), Problem.of("E341", step=1), None]

    def run_child(arguments: list[str]) -> dict[str, Any]:
        if error := answers.pop(0):
            raise error
        return made(arguments, behind)

    monkeypatch.setattr(replay, "run_child", run_child)
    for _ in range(3):
        replay.replay_log(behind.pk)
    assert behind.happenings.filter(kind="failed").count() == 1
    assert behind.snapshots.filter(index=1).exists()
