"""A rival's virtual environment is created once, recreated when its requirements change, and never left incomplete."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks.rivals import environment
from tests.benchmarks.rivals.environment import Unavailable, clean_environment, interpreter


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    asked: list[Sequence[str]] = []

    def done(command: Sequence[str]) -> None:
        asked.append(command)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()

    monkeypatch.setattr(environment, "_done", done)
    return asked


def test_it_is_made_once_and_again_for_other_requirements(commands: list[Sequence[str]], tmp_path: Path) -> None:
    folder, requirements = tmp_path / "made", tmp_path / "requirements.txt"
    requirements.write_text("one==1\n")
    python = interpreter(folder, requirements)
    assert (python, len(commands)) == (folder / "bin" / "python", 2)
    assert str(requirements) in commands[1]
    (folder / "mark").touch()
    assert interpreter(folder, requirements) == python
    assert len(commands) == 2
    requirements.write_text("one==2\n")
    interpreter(folder, requirements)
    assert len(commands) == 4
    assert not (folder / "mark").exists()


def test_one_that_was_not_finished_is_made_again(commands: list[Sequence[str]], tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("one==1\n")
    interpreter(tmp_path / "made", requirements)
    (tmp_path / "made" / environment.STAMP).unlink()
    interpreter(tmp_path / "made", requirements)
    assert len(commands) == 4


@pytest.mark.parametrize("command", [["/nowhere/at-all"], [sys.executable, "-S", "-c", "raise SystemExit('at-all')"]])
def test_what_cannot_be_done_says_why(command: list[str]) -> None:
    with pytest.raises(Unavailable, match="at-all"):
        environment._done(command)


def test_nothing_of_ours_is_on_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    assert "PYTHONPATH" not in clean_environment()
    assert clean_environment()["OMP_NUM_THREADS"] == "1"
