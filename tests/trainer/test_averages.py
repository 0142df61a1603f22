"""Where the averages of a record are taken from, and that nothing of it needs torch."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from peer_agent.averaging.assembly import Assembly
from peer_agent.protocol.grid import Grid
from peer_agent.trainer import averages
from peer_agent.trainer.averages import assembly_of
from tests.protocol.trainer.stage import commit

WITHOUT = "import sys, peer_agent.trainer.agent; sys.exit('torch' in sys.modules)"


def test_an_agent_that_trains_nothing_does_without_torch() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT], check=False).returncode == 0


async def test_a_round_of_the_record_is_waited_for_and_of_another_is_left(monkeypatch: Any) -> None:
    record, waited = commit(1).record, list[float]()

    async def wait(_: object, patience_s: float) -> None:
        waited.append(patience_s)

    came = Assembly(Grid(record.elements, record.chunk_elements), record.codec)
    rounds: list[Any] = [
        SimpleNamespace(is_of=lambda _, is_its=is_its: is_its, assembly=came, wait_for_chunks=wait)
        for is_its in (True, False)
    ]
    assert await assembly_of(record, rounds[0]) is came
    assert waited == [averages.SETTLE_S]
    for round_ in (rounds[1], None):
        other = await assembly_of(record, round_)
        assert other is not came
        assert (other.grid, other.codec) == (came.grid, came.codec)
    assert len(waited) == 1
