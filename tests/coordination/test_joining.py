"""A new relay joins a run with many steps. It gets the log in pages while the run continues."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordination.hosts import writer
from coordination.threads import in_thread
from peer_agent.protocol.coordinator import reports
from peer_agent.protocol.credentials import Role
from tests.coordination.engines import PATIENCE_S, fresh_database, use_layer
from tests.coordination.example_run import Example, example_run, require_equal_books
from tests.coordination.joining import joins, new_relay, served, watched
from tests.coordination.peer_link import credential_of, identity_of
from tests.coordination.peers import Contributor, taking_part
from tests.coordination.running import hosts
from tests.long_run import long_run
from tests.runs.factories import owned


@pytest.fixture(autouse=True)
def site(request: pytest.FixtureRequest, settings: Any, tmp_path: Path, data_folder: Path) -> Any:
    """Use SQLite only, since the rows are the same on every database."""
    use_layer("memory", request, settings)
    with fresh_database("sqlite", request, tmp_path):
        yield


def grown(steps: int, machines: int) -> Example:
    example = example_run()
    long_run(example.run, steps=steps, machines=machines)
    return example


@pytest.mark.parametrize(
    ("steps", "machines", "pages"),
    [(300, 3, 5), (60, 200, 4)],
    ids=["pages of 64 records", "pages of a mebibyte"],
)
async def test_it_gets_the_log_page_by_page(
    steps: int, machines: int, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next page is sent on acknowledgement, not after a timeout on the host."""
    monkeypatch.setattr(reports, "PAGE_AGAIN_S", 3600.0)
    example = await in_thread(grown)(steps, machines)
    owner = await in_thread(owned)(example.run.organizer, "relay")
    identity = identity_of(credential_of(owner, None, Role.RELAY), owner.key)
    with watched(monkeypatch.setattr) as seen:
        async with served() as url, hosts(), new_relay(url, identity, example.run.run_id) as relay:
            teo = identity_of(credential_of(example.teo, example.run), example.teo.key)
            async with taking_part(Contributor, teo, example.run.run_id), asyncio.timeout(PATIENCE_S):
                await joins(relay, steps)
    told = seen.of(owner.machine.peer_id)
    assert [page.first for page in told] == [1 + sum(page.records for page in told[:at]) for at in range(len(told))]
    assert pages <= len(told) <= pages + 1, "the run makes steps meanwhile"
    assert max(page.records for page in told) <= writer.PAGE
    assert max(page.bytes for page in told) <= writer.PAGE_BYTES
    assert seen.most_waiting <= writer.PAGE + 16
    await in_thread(require_equal_books)(example.run)
