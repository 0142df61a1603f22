"""The place of a site process in its data folder."""

import errno
from pathlib import Path

import pytest

from peer_agent.protocol.errors import Problem
from server import lock


def test_a_disk_that_knows_no_locks_is_told_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "try_lock", refuse)
    with pytest.raises(Problem, match="No locks available"), lock.own_place(tmp_path, alone=True):
        pass


def test_a_second_process_finds_the_second_place_or_is_told_who_has_the_first(tmp_path: Path) -> None:
    with lock.own_place(tmp_path, alone=False) as first, lock.own_place(tmp_path, alone=False) as second:
        assert (first.number, second.number) == (1, 2)
        with pytest.raises(Problem, match="E404"), lock.own_place(tmp_path, alone=True):
            pass
