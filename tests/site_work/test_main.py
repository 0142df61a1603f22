"""The commands as the site runs them: a child process, JSON on the last line, and an exit status."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peer_agent.machine.limits import NICE
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.publishing import child, portions, row_groups
from peer_agent.publishing.__main__ import run_shard
from peer_agent.publishing.child import fail, fault_of, succeed
from peer_agent.site_work import __main__ as commands
from peer_agent.site_work import evaluate, streaming
from tests.publishing.texts import docstrings, written
from tests.training.commits import small_recipe

PREPARATION = '{"data":"text","vocab":300}'


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "peer_agent.site_work", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def facts_of(done: "subprocess.CompletedProcess[str]") -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.check
def test_from_a_text_to_a_release(tmp_path: Path) -> None:
    text = written(tmp_path, docstrings()[:50_000])
    prepared = facts_of(run("prepare", text, tmp_path / "data", "--preparation", PREPARATION))
    assert set(prepared) == {
        "vocab",
        "size",
        "characters",
        "shards",
        "heldout",
        "unigram_entropy",
        "ready",
        "end",
        "special",
        "verdict",
    }
    assert set(prepared["shards"][0]) == set(prepared["heldout"]) == {"digest", "size", "source"}
    (tmp_path / "recipe.json").write_bytes(encode_recipe(small_recipe()))
    initial = facts_of(run("initial", tmp_path / "recipe.json", tmp_path))
    assert set(initial) == {"file", "size", "elements", "parameters", "state_digest"}
    (tmp_path / "facts.json").write_text(json.dumps({"slug": "a-run", "title": "A run", "steps": 0, "loss": 5.7}))
    released = facts_of(
        run(
            "release",
            tmp_path / "recipe.json",
            tmp_path / f"{initial['file']}.safetensors",
            tmp_path / "data",
            tmp_path / "release",
            "--facts",
            tmp_path / "facts.json",
        )
    )
    assert set(released) == {"files", "archive", "sample"}
    assert set(released["files"][0]) == {"name", "size", "sha256"}


@pytest.mark.parametrize(
    ("content", "code", "words"), [(b"", "E303", "empty"), ("é".encode() * 20 + b"\xff", "E302", "byte 40: 0xff")]
)
def test_a_persons_error_is_the_last_line(content: bytes, code: str, words: str, tmp_path: Path) -> None:
    done = run("prepare", written(tmp_path, content), tmp_path / "data", "--preparation", PREPARATION)
    assert done.returncode == 1
    assert done.stdout == ""
    fault = fault_of(done.stderr)
    assert fault is not None
    assert fault.code == code
    assert words in fault.text


@pytest.mark.parametrize(
    ("arguments", "code"), [(("initial",), "E312"), (("shard", "missing.json", "--endpoint", "https://hub"), "E347")]
)
def test_an_unexpected_error_has_a_number_too(arguments: tuple[str, ...], code: str, tmp_path: Path) -> None:
    done = run(*arguments, tmp_path / "missing.json", tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    fault = fault_of(done.stderr)
    assert fault is not None
    assert fault.code == code
    assert "missing.json" in fault.text


def test_every_number_of_unexpected_errors_needs_only_a_reason() -> None:
    parsers = argparse.ArgumentParser().add_subparsers()
    commands.add_commands(parsers)
    for command in parsers.choices.values():
        assert "(a bug)" in Fault.of(command.get_default("unexpected"), reason="a bug").text


# How the parent process reads the output

NOISE = 'Loading weights: 100%\n{"code": 1}\n'


@pytest.mark.skipif(not hasattr(os, "nice"), reason="this system has no such priorities")
def test_snapshot_is_measured_at_the_priority_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process at lower priority than the agents on its machine would get a seventh of an agent's CPU time."""
    asked: list[int] = []
    monkeypatch.setattr(os, "nice", asked.append)
    monkeypatch.setattr(evaluate, "evaluate", lambda **_: None)
    monkeypatch.setattr(commands, "recipe_in", lambda _: None)
    names = ("recipe", "snapshot", "heldout", "files", "data", "prompt")
    commands.run_evaluate(argparse.Namespace(**dict.fromkeys(names)))
    assert asked == [NICE]


def test_facts_are_on_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert succeed(Fault("E353", "why")) == 0
    assert child.facts_of(NOISE + capsys.readouterr().out) == {"code": "E353", "cause": "why"}


def test_an_error_is_on_the_last_line_of_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(Fault.of("E353")) == 1
    assert fault_of(NOISE + capsys.readouterr().err + "\n\n") == Fault.of("E353")


@pytest.mark.parametrize("errors", ["", "\n", "Killed", NOISE, "[1]", "Segmentation fault\n"])
def test_whoever_dies_without_a_word_names_none(errors: str) -> None:
    assert fault_of(errors) is None


def test_rows_of_strangers_are_unpacked_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[str]()
    monkeypatch.setattr(row_groups, "limit_memory", lambda: done.append("limited"))
    monkeypatch.setattr(portions, "make_portion", lambda *_: done.append("made"))
    run_shard(argparse.Namespace(file=Path(), tokenizer=Path(), out=Path(), endpoint=""))
    monkeypatch.setattr(streaming, "fetch_sample", lambda *_, **__: done.append("sampled"))
    wanted = {"repository": "a/b", "endpoint": "", "kind": "dataset", "files": ""}
    commands.run_hub_fetch(argparse.Namespace(streamed=True, commit="", folder=Path(), most=1, **wanted))
    assert done == ["limited", "made", "limited", "sampled"]


@pytest.mark.skipif(sys.platform == "win32", reason="it holds no process to that")
def test_the_bound_holds() -> None:
    code = "from peer_agent.publishing.row_groups import limit_memory; limit_memory(); bytearray(7 << 30)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 1
    assert "MemoryError" in told.stderr
