"""A shard of texts on the Hub, made on this machine: with the real child and a strict Hub."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.network.uplink import DOWNLINK, TRAFFIC
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.text.portion import Portion, portion_in
from peer_agent.recipes.text.tokens import load_shard
from peer_agent.trainer import children, portions
from peer_agent.trainer import files as site_files
from peer_agent.trainer.children import run_child
from peer_agent.trainer.files import fetch_shard
from peer_agent.trainer.portions import Portions
from tests.agent.scripted_site import TRAINER, OwnAccess
from tests.publishing.hub.hub_double import Hub, running_hub
from tests.publishing.test_streaming import prepared, streamed, texts

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
    """A machine, and a site that has one shard and its tokenizer."""

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


async def test_a_hub_that_is_away_is_waited_for_and_told(
    hub: Hub, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, sleep = list[float](), asyncio.sleep
    monkeypatch.setattr(portions, "LONGEST_PAUSE_S", 2.0)

    async def paused(pause_s: float, *_: Any) -> None:
        pauses.append(pause_s)
        assert fetching.view.troubles.lasts(AWAY)
        if len(pauses) == 3:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            raise asyncio.CancelledError
        await sleep(0)

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(portions.asyncio, "sleep", paused)  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await fetching.fetch()
    assert pauses == [1.0, 2.0, 2.0]
    monkeypatch.setattr(portions.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    await fetching.fetch()
    assert not fetching.view.troubles.lasts(AWAY)


async def test_a_hub_that_does_not_end_is_asked_again(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    tries, run = list[list[str]](), run_child

    async def hangs_once(command: list[str], **more: Any) -> dict[str, Any]:
        tries.append(command)
        if len(tries) == 1:
            monkeypatch.setattr(portions, "SILENT_S", 60.0)  # of the next
            await asyncio.sleep(60)
        return await run(command, **more)

    monkeypatch.setattr(portions, "run_child", hangs_once)
    monkeypatch.setattr(portions, "SILENT_S", 0.05)
    monkeypatch.setattr(portions, "FIRST_PAUSE_S", 0.01)
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
        monkeypatch.setattr(portions, "SILENT_S", 60.0)
        await came(1000)
        await asyncio.sleep(0.4)  # longer than was allowed before anything had come
        return await run_child(command, came=came)

    monkeypatch.setattr(portions, "run_child", slow)
    monkeypatch.setattr(portions, "SILENT_S", 0.2)
    assert len(load_shard(await fetching.fetch())) == fetching.portion.tokens
    assert len(tries) == 1


def test_a_child_knows_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_volunteer")
    assert "HF_TOKEN" not in children._environment()
