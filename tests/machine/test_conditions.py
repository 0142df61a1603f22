"""Which figures are a trouble, at the edges."""

from pathlib import Path

import pytest

from peer_agent.machine import conditions
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S
from peer_agent.protocol.errors import Fault


def code_of(fault: Fault | None) -> str:
    return fault.code if fault is not None else ""


@pytest.mark.parametrize(
    ("free", "memory", "disk", "in_use"),
    [
        (199_999_999, "E120", "E121", "E121"),
        (200_000_000, "E120", "E138", ""),
        (499_999_999, "E120", "E138", ""),
        (500_000_000, "E137", "E138", ""),
        (1_999_999_999, "E137", "E138", ""),
        (2_000_000_000, "", "", ""),
    ],
)
def test_what_is_free(free: int, memory: str, disk: str, in_use: str) -> None:
    folder = Path("home")
    assert code_of(conditions.of_memory(free)) == memory
    assert code_of(conditions.of_disk(free, folder)) == disk
    assert code_of(conditions.of_disk_in_use(free, folder)) == in_use


@pytest.mark.parametrize(
    ("offset_s", "code"),
    [(60, ""), (-60, ""), (61, "E139"), (-CLOCK_TOLERANCE_S, "E139"), (CLOCK_TOLERANCE_S + 1, "E204")],
)
def test_clocks(offset_s: float, code: str) -> None:
    assert code_of(conditions.of_clock(offset_s)) == code


@pytest.mark.parametrize(
    ("missing", "answering", "code"), [([], [], ""), ([], ["a"], ""), (["a"], ["b"], "E136"), (["b", "a"], [], "E135")]
)
def test_relays(missing: list[str], answering: list[str], code: str) -> None:
    fault = conditions.of_relays(missing, answering)
    assert code_of(fault) == code
    if code == "E135":
        assert fault is not None
        assert "(a, b)" in fault.text
