"""A relay's log as version 1 left it: today's relay serves it, goes on behind it, and today's site replays it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.averaging.update_log import UpdateLog
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.reading import open_record
from peer_agent.protocol.log.records import Entry, digest_of, from_lines, seal
from peer_agent.recipes import parse_recipe
from peer_agent.relay.process import Relay
from peer_agent.site_work.relay_logs import Reach, RelayLogs, write_reach
from peer_agent.site_work.replay import Logs, Replayed, replay
from tests.agent.scripted_site import PATIENCE_S, RELAY, OwnAccess, Site, next_of, relaying, site
from tests.averaging.rounds import RUN
from tests.golden import version_1
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC

READER = PeerId("dd" * 16)
LAST = 3  # of the relay's records; the site has committed one more
HERE = f"relay/log/{RUN}"


@pytest.fixture
def facts(tmp_path: Path) -> Any:
    return version_1(tmp_path)


def committed(folder: Path) -> list[Entry]:
    return [from_lines(path.read_bytes()) for path in sorted((folder / "committed").iterdir())]


def files(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / HERE / kind).iterdir())


def made(folder: Path, facts: Any, logs: Logs) -> Replayed:
    """By the site's child process, from the first parameters."""
    return replay(
        recipe=parse_recipe((folder / "recipe.json").read_bytes()),
        snapshot=folder / "home" / "cache" / "snapshots" / f"{facts['file']}.safetensors",
        records=folder / "committed",
        logs=logs,
        site_key=SITE_PUBLIC,
        out=folder / "out",
        begins=facts["file"],
    )


def is_the_end(state: Replayed, facts: Any) -> bool:
    """Whether it is what a replica of version 1 had."""
    end = facts["end"]
    found = {"step": state.step, "digest": state.log_digest, "state_digest": state.state_digest, "file": state.file}
    return bool(found == end)


def test_it_is_opened_as_it_was(facts: Any, tmp_path: Path) -> None:
    log = UpdateLog(tmp_path / "relay" / "log", SITE_PUBLIC)
    assert log.last_index(RUN) == LAST
    assert log.records(RUN, 1, 10) == committed(tmp_path)[:LAST]
    assert [log.missing(RUN, index) for index in range(1, LAST + 1)] == [[], [], []]
    assert [part.person for part in open_record(log.records(RUN, 1, 1)[0], SITE_PUBLIC).contributions] == [
        "Amina",
        "Teo",
    ]
    assert files(tmp_path, "records") == ["00000001.json", "00000002.json", "00000003.json"], "half a file is gone"
    assert len(files(tmp_path, "tentative")) == 3, "no record has decided about them yet"


def test_the_site_replays_it_where_it_lies(facts: Any, tmp_path: Path) -> None:
    """The last entry's bytes are still tentative there."""
    assert is_the_end(made(tmp_path, facts, Logs([tmp_path / HERE])), facts)


async def hello_of(script: Site) -> m.Hello:
    await script.says(m.Rehello(run=RUN, fence=3))
    return await script.hears(m.Hello)


async def until_it_holds(relay: Relay, index: int) -> None:
    keeper = relay.runs[RUN].state.keeper
    assert keeper is not None
    async with asyncio.timeout(PATIENCE_S):
        while keeper.index < index:  # noqa: ASYNC110 - written by another thread
            await asyncio.sleep(0.01)


def told(entry: Entry) -> m.Commit:
    return m.Commit(run=RUN, fence=3, record=entry.head, contributions=entry.contributions)


async def test_a_relay_goes_on_behind_it_and_the_site_fetches_it(facts: Any, tmp_path: Path) -> None:
    last = committed(tmp_path)[LAST]
    next_one = replace(open_record(last, SITE_PUBLIC), index=5, step=5, round=5, previous=digest_of(last), spans=())
    async with site() as script, relaying(script, tmp_path / "relay", RELAY) as relay:
        assert (await hello_of(script)).log_index == LAST
        await script.says(told(last), told(seal(SITE_KEY, next_one)))
        await until_it_holds(relay, 5)
        assert (await hello_of(script)).log_index == 5
        access = OwnAccess(tmp_path / "reader", READER, Role.READER, "")
        link = await access.dial_listener(m.Listener(RELAY, relay.url))
        await link.send(m.FetchRecords(run=RUN, first=1))
        page = await next_of(link, m.Records)
        assert (page.last, len(page.records)) == (5, 5)
        await link.close()
        reach = Reach(
            run=RUN,
            peer=READER,
            credential=access.credential,  # type: ignore[arg-type]
            relays=(m.Listener(peer=RELAY, url=relay.url),),
        )
        write_reach(tmp_path / "reach", reach)
        assert await asyncio.to_thread(is_fetched, tmp_path, facts, access)
    assert files(tmp_path, "spans")[-2:] == ["00000004-0.span", "00000004-1.span"]
    assert files(tmp_path, "tentative") == [], "of entry 4 they have moved, of an attempt that was none they are gone"
    again = UpdateLog(tmp_path / "relay" / "log", SITE_PUBLIC)
    assert [digest_of(entry) for entry in again.records(RUN, 4, 2)] == [digest_of(last), digest_of(page.records[4])]


def is_fetched(folder: Path, facts: Any, access: OwnAccess) -> bool:
    """With nothing of it on the site's disk."""
    with RelayLogs(folder / "reach", access.key, SITE_PUBLIC) as logs:
        return is_the_end(made(folder, facts, Logs((), logs)), facts)


async def test_what_the_site_has_verified_of_a_finished_run_leaves_it(facts: Any, tmp_path: Path) -> None:
    """No host speaks of that run any more; the site does when the relay comes. Records stay."""
    kept = m.Snapshot(index=LAST, step=LAST, digest="", state_digest="", file="", size=1)
    async with site() as script, relaying(script, tmp_path / "relay", RELAY) as relay:
        await script.says(m.Snapshotted(run=RunId("cd" * 16), snapshot=kept, keep_after=LAST))
        await script.says(m.Snapshotted(run=RUN, snapshot=kept, keep_after=LAST))
        async with asyncio.timeout(PATIENCE_S):
            while files(tmp_path, "spans"):  # noqa: ASYNC110 - another thread deletes them
                await asyncio.sleep(0.01)
        assert list(relay.runs) == [RUN], "of a run that it has nothing of it remembers nothing"
    assert len(files(tmp_path, "records")) == LAST
