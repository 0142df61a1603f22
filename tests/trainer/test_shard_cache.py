"""A run's shards here: fetched once and before they are needed, bounded on disk and in memory."""

import asyncio
import os
import threading
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from peer_agent.machine.home import Home
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.site.credential import RunAccess
from peer_agent.trainer import files as site_files
from peer_agent.trainer import shard_cache
from peer_agent.trainer.shard_cache import AHEAD, Shards
from tests.agent.scripted_site import TRAINER, OwnAccess

COUNT, TOKENS = 6, 500
SIZE = len(save({"tokens": np.zeros(TOKENS, np.uint16)}))


@pytest.fixture
async def access(tmp_path: Path) -> RunAccess:
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")
    await access.renew()
    return access


def place(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(save({"tokens": np.full(TOKENS, number, np.uint16)}))


class Site:
    """Gives each shard, once it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[int] = []
        self.refusals: list[str] = []
        self.is_open = threading.Event()
        self.is_open.set()
        monkeypatch.setattr(site_files, "download", self.download)

    async def download(self, url: str, path: Path, **_: Any) -> None:
        await asyncio.to_thread(self.is_open.wait, 10)
        if self.refusals:
            raise Problem.of(self.refusals.pop(0), url=url, reason="a test", name=path.name, path=path)
        number = int(url.rsplit("/", 1)[-1], 16)
        self.given.append(number)
        await asyncio.to_thread(place, path, number)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def shards_of(tmp_path: Path, access: RunAccess, *, disk_bytes: int = 10**9) -> Shards:
    known = tuple(m.Shard(digest=f"{number:064x}", tokens=TOKENS) for number in range(COUNT))
    return Shards(Home(tmp_path), access, CausalLM(), known, asyncio.get_running_loop(), disk_bytes=disk_bytes)


async def content(shards: Shards, shard: int) -> int:
    """As the thread that computes asks for it."""
    tokens = await asyncio.to_thread(shards.__getitem__, shard)
    return int(tokens[0])


def on_disk(tmp_path: Path) -> list[int]:
    return sorted(int(path.stem, 16) for path in (Home(tmp_path).cache / "shards").glob("*.safetensors"))


async def quiet(shards: Shards) -> None:
    await asyncio.gather(*filter(None, (shards._fetcher,)), *shards._fetching.values(), return_exceptions=True)
    await asyncio.sleep(0)


async def test_a_shard_is_fetched_once(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    assert [await content(shards, number) for number in (3, 1, 3, 1)] == [3, 1, 3, 1]
    assert site.given == [3, 1]


async def test_what_comes_is_there_before_it_is_asked_for(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    shards.prefetch([2, 2, 4, 5, 1, 3])
    await quiet(shards)
    assert site.given == [2, 4, 5, 1], f"the next {AHEAD}, each once"
    site.is_open.clear()  # nothing more is given
    assert [await content(shards, number) for number in (2, 1)] == [2, 1]


def test_nobody_waits_for_an_agent_that_is_gone(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_cache, "LOOK_S", 0.01)
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")

    async def made() -> Shards:
        return shards_of(tmp_path, access)

    shards = asyncio.run(made())
    fetched: Future[Path] = Future()  # nobody will ever say what came of it
    with pytest.raises(CancelledError):
        shards._waited_for(fetched)


async def test_those_that_are_open_are_not_counted(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """Else whoever goes through several shards at once would never fetch the next one ahead."""
    shards = shards_of(tmp_path, access)
    for number in (1, 2, 3):
        await content(shards, number)
    shards.prefetch([1, 2, 3, 1, 2, 3, 4, 5, 6])
    await quiet(shards)
    assert site.given == [1, 2, 3, 4, 5]
    assert [shards.is_open(number) for number in (3, 4)] == [True, False]


async def test_the_next_one_has_the_link_to_itself(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """Two at once were both there as late as the second of them is one after another."""
    shards = shards_of(tmp_path, access)
    site.is_open.clear()
    shards.prefetch([1, 2])
    await asyncio.sleep(0.05)
    assert list(shards._fetching) == [1]
    shards.prefetch([3, 2])  # 3 is needed before 2 by now
    await asyncio.sleep(0.05)
    assert list(shards._fetching) == [1], "what is on its way comes"
    asking = asyncio.create_task(content(shards, 5))
    await asyncio.sleep(0.05)
    assert sorted(shards._fetching) == [1, 5], "what is needed now waits for nothing"
    site.is_open.set()
    assert await asking == 5
    await quiet(shards)
    assert [number for number in site.given if number != 5] == [1, 3, 2]


async def test_one_that_cannot_be_had_stops_no_other(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    site.refusals = ["E106"]
    shards.prefetch([1, 2])
    await quiet(shards)
    assert site.given == [2]


async def test_what_there_is_not_is_not_fetched(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """A site says what comes, also one that is wrong."""
    shards = shards_of(tmp_path, access)
    shards.prefetch([10**9, 10**9 + 1, 1])
    await quiet(shards)
    assert site.given == [1]


async def test_a_shard_that_is_on_its_way_is_waited_for(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    site.is_open.clear()
    shards.prefetch([2])
    shards.prefetch([2])
    asking = [asyncio.create_task(content(shards, 2)) for _ in range(3)]
    await asyncio.sleep(0.05)
    site.is_open.set()
    assert await asyncio.gather(*asking) == [2, 2, 2]
    assert site.given == [2]


async def test_a_fetch_that_failed_is_told_to_whoever_needs_it(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    site.refusals = ["E106", "E106"]
    shards.prefetch([2])
    await quiet(shards)
    with pytest.raises(Problem, match="E106"):
        await content(shards, 2)
    assert await content(shards, 2) == 2


async def test_what_was_used_longest_ago_leaves_the_disk(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access, disk_bytes=3 * SIZE)
    folder = Home(tmp_path).cache / "shards"
    for age, number in enumerate((0, 1, 2, 3)):
        await content(shards, number)
        os.utime(folder / f"{number:064x}.safetensors", (1000 + age, 1000 + age))
    assert on_disk(tmp_path) == [1, 2, 3]
    await content(shards, 4)
    assert on_disk(tmp_path) == [2, 3, 4]
    assert await content(shards, 0) == 0, "it is open, and needs no file"
    assert site.given == [0, 1, 2, 3, 4]


async def test_what_is_used_again_is_the_newest(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """Also by an agent that was begun anew, and has nothing open."""
    folder = Home(tmp_path).cache / "shards"
    for age, number in enumerate((0, 1, 2)):
        await content(shards_of(tmp_path, access), number)
        os.utime(folder / f"{number:064x}.safetensors", (1000 + age, 1000 + age))
    await content(shards_of(tmp_path, access), 0)
    await content(shards_of(tmp_path, access, disk_bytes=3 * SIZE), 4)
    assert on_disk(tmp_path) == [0, 2, 4]
    assert site.given == [0, 1, 2, 4]


async def test_what_is_needed_stays_whatever_the_bound(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access, disk_bytes=1)
    for number in range(3):
        assert await content(shards, number) == number
    assert 2 in on_disk(tmp_path)
    assert len(on_disk(tmp_path)) <= 2
    del site


async def test_files_of_other_runs_count_and_leave_too(tmp_path: Path, access: RunAccess, site: Site) -> None:
    other = Home(tmp_path).cache / "shards" / f"{99:064x}.safetensors"
    await asyncio.to_thread(place, other, 99)
    os.utime(other, (1, 1))
    shards = shards_of(tmp_path, access, disk_bytes=SIZE)
    await content(shards, 0)
    assert on_disk(tmp_path) == [0]
    del site


async def test_memory_holds_so_much_and_the_newest(
    tmp_path: Path, access: RunAccess, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_cache, "OPEN_BYTES", 2 * SIZE)
    shards = shards_of(tmp_path, access)
    for number in (0, 1, 0, 2):
        await content(shards, number)
    assert list(shards._open) == [0, 2]
    monkeypatch.setattr(shard_cache, "OPEN_BYTES", 1)
    await content(shards, 3)
    assert list(shards._open) == [3]
    assert site.given == [0, 1, 2, 3]


async def test_a_file_that_is_no_shard_is_fetched_anew(tmp_path: Path, access: RunAccess, site: Site) -> None:
    path = Home(tmp_path).cache / "shards" / f"{2:064x}.safetensors"
    await asyncio.to_thread(place, path, 2)
    os.truncate(path, 9)
    shards = shards_of(tmp_path, access)
    with pytest.raises(Problem, match="E111"):
        await content(shards, 2)
    assert await content(shards, 2) == 2
    assert site.given == [2]


async def test_whoever_leaves_fetches_nothing_more(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """Also what is on its way: the link is to be quiet."""
    shards = shards_of(tmp_path, access)
    site.is_open.clear()
    shards.prefetch([2, 4])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    shards.close()
    await quiet(shards)
    assert not shards._fetching
    site.is_open.set()
    await asyncio.sleep(0.05)
    assert on_disk(tmp_path) == []


async def test_it_is_waited_for_as_long_as_somebody_wants_it(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards, wanted = shards_of(tmp_path, access), True
    site.is_open.clear()
    waiting = asyncio.create_task(shards.ready([2, 4, 2], lambda: wanted))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    site.is_open.set()
    assert await waiting
    assert site.given == [2, 4]
    site.is_open.clear()
    waiting, wanted = asyncio.create_task(shards.ready([5], lambda: wanted)), False
    assert not await waiting
    site.is_open.set()
    assert await content(shards, 5) == 5, "what was on its way goes on"
    assert site.given == [2, 4, 5]
    assert await shards.ready([5], lambda: False), "what is open is not waited for"


async def test_what_cannot_be_had_is_told_to_whoever_waits(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    site.refusals = ["E111"]
    with pytest.raises(Problem, match="E111"):
        await shards.ready([1], lambda: True)
