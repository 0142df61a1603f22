"""Disk errors are reported in the system's own words."""

import errno
import os
from pathlib import Path

import pytest

from peer_agent.protocol.errors import Problem, disk_errors, disk_fault


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_the_systems_words_are_the_reason(number: int) -> None:
    error = OSError(number, os.strerror(number), "/a/file")
    assert (
        disk_fault("/a", error).cause == f"The disk that holds /a is full or cannot be written to ({error.strerror})."
    )


def test_an_error_without_words_of_the_system_has_its_own() -> None:
    assert "(no room)" in disk_fault(Path("/a"), OSError("no room")).cause


def test_only_what_the_disk_refuses_is_its_doing() -> None:
    with pytest.raises(Problem, match=r"E106.* /a ") as refused, disk_errors("/a"):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert isinstance(refused.value.__cause__, PermissionError)
    with pytest.raises(ValueError, match="another"), disk_errors("/a"):
        raise ValueError("another")
