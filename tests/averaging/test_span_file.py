"""Span files are there whole or not at all."""

import os
from pathlib import Path

import pytest

from peer_agent.averaging.span_file import read_span, write_durably, write_span
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.merkle import leaf_of

PAYLOADS = [b"first chunk", b"", b"the third"]
LEAVES = [leaf_of(payload, 1.5) for payload in PAYLOADS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "1-0.span"
    write_span(path, LEAVES, PAYLOADS)
    return path


def test_what_was_written_is_read(path: Path) -> None:
    stored = read_span(path)
    assert stored is not None
    assert list(stored.leaves) == LEAVES
    assert [bytes(payload) for payload in stored.payloads] == PAYLOADS
    assert [file.name for file in path.parent.iterdir()] == ["1-0.span"]


def test_a_span_that_is_being_read_may_be_deleted(path: Path) -> None:
    stored = read_span(path)
    path.unlink()
    assert stored is not None
    assert bytes(stored.payloads[2]) == b"the third"


def test_no_file_is_no_span(tmp_path: Path) -> None:
    assert read_span(tmp_path / "1-0.span") is None


def test_a_file_cut_anywhere_is_no_span(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert read_span(path) is None
    path.write_bytes(data + b"x")
    assert read_span(path) is None
    path.write_bytes(b"X" + data[1:])
    assert read_span(path) is None


def test_each_payload_needs_a_leaf(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 leaves for 3 chunks"):
        write_span(tmp_path / "1-0.span", LEAVES[:2], PAYLOADS)


def test_a_full_disk_is_a_numbered_error_and_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Problem, match=r"E106: .*No space left"):
        write_durably(path, [b"new"])
    assert [file.name for file in path.parent.iterdir()] == ["1-0.span"]
    assert read_span(path) is not None


def test_a_missing_folder_is_a_numbered_error(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E106"):
        write_durably(tmp_path / "gone" / "file", [b"new"])
