"""Snapshot files: every machine writes equal bytes, and an invalid file is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from peer_agent.protocol.errors import Problem
from peer_agent.training.model import Layout, Piece
from peer_agent.training.snapshots import State, read_state

LAYOUT = Layout((Piece("a", (2, 3), 0), Piece("b", (4,), 6)), 10)


def some_state() -> State:
    vectors = [np.arange(10, dtype=np.float32) * scale for scale in (1.0, 0.5, -2.0)]
    return State(
        layout=LAYOUT,
        step=3,
        index=4,
        log_digest="c" * 64,
        parameters=vectors[0],
        moment1=vectors[1],
        moment2=vectors[2],
    )


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    some_state().save(tmp_path / "state.safetensors")
    back = read_state(tmp_path / "state.safetensors")
    assert (back.layout, back.step, back.index, back.log_digest) == (LAYOUT, 3, 4, "c" * 64)
    for name in ("parameters", "moment1", "moment2"):
        assert np.array_equal(getattr(back, name), getattr(some_state(), name))


def test_the_same_state_is_the_same_file(tmp_path: Path) -> None:
    digest = some_state().save(tmp_path / "one")
    assert digest == some_state().save(tmp_path / "other")
    assert digest == hashlib.sha256((tmp_path / "one").read_bytes()).hexdigest()
    assert digest == "4a72ac2bb035e7d57e6c16e013292b64c96a9f1e21449580d80a2fe1698f5f45"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_anyone_can_read_it(tmp_path: Path) -> None:
    some_state().save(tmp_path / "state.safetensors")
    with safe_open(tmp_path / "state.safetensors", framework="numpy") as file:
        assert set(file.keys()) == {"parameters", "moment1", "moment2"}
        assert (file.metadata()["step"], file.metadata()["index"]) == ("3", "4")


def test_a_full_disk_has_a_number(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E106"):
        some_state().save(tmp_path / "missing" / "state.safetensors")


def test_something_else_has_a_number(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"\0" * 100)
    with pytest.raises(Problem, match="E310"):
        read_state(path)
    some_state().save(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Problem, match="E310"):
        read_state(path)
