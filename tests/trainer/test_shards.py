"""A run's shards on a machine: fetched once, ahead of use, bounded on disk and in memory."""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.network.uplink import DOWNLINK, TRAFFIC
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.publishing import child
from peer_agent.publishing.child import run_child
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.text.portion import Portion, portion_in
from peer_agent.recipes.text.tokens import load_shard
from peer_agent.site.credential import RunAccess
from peer_agent.trainer import files as site_files
from peer_agent.trainer import shards
from peer_agent.trainer.files import fetch_shard
from peer_agent.trainer.shards import AHEAD, Portions, Shards
from tests.agent.scripted_site import TRAINER, OwnAccess
from tests.network.loopback import turns
from tests.publishing.hub_double import Hub, running_hub
from tests.site_work.test_streaming import prepared, streamed, texts

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
    """Return a shard's first token, read in a thread as the trainer does."""
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
    site.is_open.clear()  # nothing more is served
    assert [await content(shards, number) for number in (2, 1)] == [2, 1]


def test_nobody_waits_for_an_agent_that_is_gone(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer_agent.trainer.shards.LOOK_S", 0.01)
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")

    async def made() -> Shards:
        return shards_of(tmp_path, access)

    shards = asyncio.run(made())
    fetched: Future[Path] = Future()  # the fetch never gets a result
    with pytest.raises(CancelledError):
        shards._waited_for(fetched)


async def test_those_that_are_open_are_not_counted(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """If open shards counted, a trainer using several at once would never prefetch the next one."""
    shards = shards_of(tmp_path, access)
    for number in (1, 2, 3):
        await content(shards, number)
    shards.prefetch([1, 2, 3, 1, 2, 3, 4, 5, 6])
    await quiet(shards)
    assert site.given == [1, 2, 3, 4, 5]
    assert [shards.is_open(number) for number in (3, 4)] == [True, False]


async def test_the_next_one_has_the_link_to_itself(tmp_path: Path, access: RunAccess, site: Site) -> None:
    """Two parallel fetches would finish no earlier than the second of two sequential ones."""
    shards = shards_of(tmp_path, access)
    site.is_open.clear()
    shards.prefetch([1, 2])
    await turns()
    assert list(shards._fetching) == [1]
    shards.prefetch([3, 2])  # shard 3 is now needed before shard 2
    await turns()
    assert list(shards._fetching) == [1], "what is on its way comes"
    asking = asyncio.create_task(content(shards, 5))
    while 5 not in shards._fetching:  # a shard that is needed now does not wait
        await turns(1)
    assert sorted(shards._fetching) == [1, 5]
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
    """A site may announce shards that do not exist. They must not displace existing ones."""
    shards = shards_of(tmp_path, access)
    shards.prefetch([*range(10**9, 10**9 + AHEAD), 1])
    await quiet(shards)
    assert site.given == [1]


async def test_a_shard_that_is_on_its_way_is_waited_for(tmp_path: Path, access: RunAccess, site: Site) -> None:
    shards = shards_of(tmp_path, access)
    site.is_open.clear()
    shards.prefetch([2])
    shards.prefetch([2])
    asking = [asyncio.create_task(content(shards, 2)) for _ in range(3)]
    await turns()
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
    """A restarted agent has no shard open, but it too treats the shard that it used last as the newest."""
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
    monkeypatch.setattr("peer_agent.trainer.shards.OPEN_BYTES", 2 * SIZE)
    shards = shards_of(tmp_path, access)
    for number in (0, 1, 0, 2):
        await content(shards, number)
    assert list(shards._open) == [0, 2]
    monkeypatch.setattr("peer_agent.trainer.shards.OPEN_BYTES", 1)
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
    """Closing also ends fetches in progress, so that the link becomes idle."""
    shards = shards_of(tmp_path, access)
    site.is_open.clear()
    shards.prefetch([2, 4])
    await turns(2)
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
    await turns()
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


AWAY, ROWS = "E346", 5000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.put_files(
            "datasets/amina/proverbs", {"data/train-0.parquet": texts(0, ROWS), "data/train-1.parquet": texts(1)}
        )
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_volunteer")
        yield hub


class Fetching:
    def __init__(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        prepared(hub, folder)
        self.file = streamed(folder)[0]
        found = portion_in(self.file)
        assert found is not None
        self.portion: Portion = found
        self.folder, self.asked = folder, list[str]()
        self.view = View()
        self.home = Home(folder / "home")
        self.path = self.home.cache / "shards" / self.file.name
        monkeypatch.setattr(site_files, "download", self.download)

    async def download(self, url: str, path: Path, *, sha256: str, **_: Any) -> None:
        self.asked.append(url.rsplit("/api/v1/files/", 1)[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer = self.folder / "out" / "tokenizer" / "tokenizer.json"
        shutil.copyfile(self.file if sha256 == self.file.stem else tokenizer, path)

    async def fetch(self) -> Path:
        access = OwnAccess(self.folder, TRAINER, Role.TRAINER, "")
        await access.renew()
        shard = m.Shard(digest=self.file.stem, tokens=self.portion.tokens)
        path = await fetch_shard(self.home, access, CausalLM(vocab=320), shard)
        return await Portions(self.home, access, self.view).made(path)


@pytest.fixture
def fetching(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetching:
    return Fetching(hub, tmp_path, monkeypatch)


async def test_it_is_made_once_and_shows_no_token(hub: Hub, fetching: Fetching) -> None:
    path = await fetching.fetch()
    assert path == fetching.path
    assert len(load_shard(path)) == fetching.portion.tokens
    assert fetching.asked == [f"shards/{fetching.file.stem}", "tokenizer/tokenizer.json"]
    assert [each.name for each in path.parent.iterdir()] == [path.name], "nothing else is left"
    assert hub.authorizations == set()
    hub.seen.clear()
    await fetching.fetch()
    assert hub.seen == []


async def test_what_was_begun_before_a_restart_is_made(fetching: Fetching) -> None:
    fetching.path.parent.mkdir(parents=True)
    shutil.copyfile(fetching.file, fetching.path)
    assert len(load_shard(await fetching.fetch())) == fetching.portion.tokens


@pytest.mark.check
async def test_a_hub_that_is_away_is_waited_for_and_told(
    hub: Hub, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, sleep = list[float](), asyncio.sleep
    monkeypatch.setattr(shards, "LONGEST_PAUSE_S", 2.0)

    async def paused(pause_s: float, *_: Any) -> None:
        pauses.append(pause_s)
        assert fetching.view.troubles.lasts(AWAY)
        if len(pauses) == 3:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            raise asyncio.CancelledError
        await sleep(0)

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(shards.asyncio, "sleep", paused)  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await fetching.fetch()
    assert pauses == [1.0, 2.0, 2.0]
    monkeypatch.setattr(shards.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    await fetching.fetch()
    assert not fetching.view.troubles.lasts(AWAY)


async def test_a_hub_that_does_not_end_is_asked_again(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    tries, run = list[list[str]](), run_child

    async def hangs_once(command: list[str], **more: Any) -> dict[str, Any]:
        tries.append(command)
        if len(tries) == 1:
            monkeypatch.setattr(shards, "SILENT_S", 60.0)  # limit for the next try
            await asyncio.sleep(60)
        return await run(command, **more)

    monkeypatch.setattr(shards, "run_child", hangs_once)
    monkeypatch.setattr(shards, "SILENT_S", 0.05)
    monkeypatch.setattr(shards, "FIRST_PAUSE_S", 0.01)
    assert len(load_shard(await fetching.fetch())) == fetching.portion.tokens
    assert len(tries) == 2


async def test_what_comes_of_the_hub_counts_and_waits_as_all_else(
    hub: Hub, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, waiting = TRAFFIC.received, list[int]()

    async def came(size: int) -> None:
        waiting.append(size)

    monkeypatch.setattr(DOWNLINK, "came", came)
    hub.sent = 0
    await fetching.fetch()
    assert sum(waiting) > hub.sent - (1 << 16)
    assert TRAFFIC.received - counted == sum(waiting) > 0


async def test_texts_that_are_gone_are_said_to_be(hub: Hub, fetching: Fetching) -> None:
    hub.repositories.clear()
    with pytest.raises(Problem) as caught:
        await fetching.fetch()
    assert caught.value.fault.code == "E397"
    assert [each.name for each in fetching.path.parent.iterdir()] == [fetching.path.name]


async def test_what_a_killed_agent_had_begun_is_swept(fetching: Fetching) -> None:
    fetching.path.parent.mkdir(parents=True)
    for name in ("0.made-1", "0.made-1.parquet", "0.made-1.rows", "0.safetensors"):
        (fetching.path.parent / name).write_bytes(b"")
    Portions(fetching.home, OwnAccess(fetching.folder, TRAINER, Role.TRAINER, "")).sweep()
    assert [path.name for path in fetching.path.parent.iterdir()] == ["0.safetensors"]


async def test_bytes_that_come_slowly_are_no_silence(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[int]()

    async def slow(command: list[str], *, came: Any) -> dict[str, Any]:
        tries.append(1)
        monkeypatch.setattr(shards, "SILENT_S", 60.0)
        await came(1000)
        await asyncio.sleep(0.4)  # longer than the limit before the first bytes
        return await run_child(command, came=came)

    monkeypatch.setattr(shards, "run_child", slow)
    monkeypatch.setattr(shards, "SILENT_S", 0.2)
    assert len(load_shard(await fetching.fetch())) == fetching.portion.tokens
    assert len(tries) == 1


def test_a_child_knows_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_volunteer")
    assert "HF_TOKEN" not in child._environment()
