"""The organizer's agent publishes while it trains: only the newest state waits, and failures are explained in words."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from peer_agent.display.lines import View
from peer_agent.display.status import ShownTrouble
from peer_agent.machine.home import Home, KnownSite
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Record
from peer_agent.publishing.card import CardFacts, Person, write_card
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.site.credential import RunAccess
from peer_agent.trainer import hub_publisher
from peer_agent.trainer.hub_publisher import HubPublisher, hub_token
from peer_agent.training.replica import Replica
from tests.agent.program import Answer, http_site, refusal
from tests.agent.scripted_site import TRAINER, OwnAccess
from tests.training.commits import record_after, small_recipe

TOKEN = "hf_of_the_person"


class Heard(View):
    def __init__(self, said: list[str]) -> None:
        super().__init__(io.StringIO())
        self.said = said

    def tell(self, event: str, text: str, **facts: Any) -> None:
        self.said.append(text)

    def trouble(self, trouble: ShownTrouble) -> None:
        self.said.append(trouble.line)


class Slow(HubPublisher):
    """A publisher that sends when the test allows it, and records what it has sent."""

    def __init__(self, home: Home, said: list[str], fault: Exception | None = None) -> None:
        site = KnownSite("http://127.0.0.1:9", PeerId("0" * 32), "Amina", "0" * 64)
        super().__init__(home, RunAccess(home, site, Role.TRAINER, "words"), "amina/live", TOKEN, Heard(said))
        self.let = asyncio.Event()
        self.sent: list[int] = []
        self.fault = fault

    async def _send(self, state: Any, record: Any, replica: Replica) -> str:
        await self.let.wait()
        if self.fault is not None:
            raise self.fault
        self.sent.append(record.step)
        return "https://hub.example/amina/live"


def replica_of(**changes: Any) -> Replica:
    return Replica(msgspec.structs.replace(small_recipe(), **changes))


async def after(publisher: HubPublisher, replica: Replica, *steps: int) -> None:
    record = record_after(replica, np.zeros(replica.layout.elements, np.float32))
    for step in steps:
        await publisher.committed(replica, msgspec.structs.replace(record, step=step))
        await asyncio.sleep(0)


async def test_only_snapshot_steps_and_the_last_are_sent(tmp_path: Path) -> None:
    said: list[str] = []
    publisher = Slow(Home(tmp_path), said)
    replica = replica_of(snapshot_every=4, target_steps=7)
    publisher.let.set()
    for step in range(1, 8):
        await after(publisher, replica, step)
        await publisher.finish()
    assert publisher.sent == [4, 7]
    assert any("step 7 is on the Hub: https://hub.example/amina/live" in line for line in said)


async def test_while_one_is_on_its_way_only_the_newest_waits(tmp_path: Path) -> None:
    publisher = Slow(Home(tmp_path), [])
    await after(publisher, replica_of(snapshot_every=1), 1, 2, 3, 4)
    publisher.let.set()
    await publisher.finish()
    assert publisher.sent == [1, 4]


@pytest.mark.parametrize("fault", [Problem.of("E345", repository="a/b", names="x"), OSError(28, "disk full")])
async def test_a_failure_is_said_and_the_next_is_sent(tmp_path: Path, fault: Exception) -> None:
    said: list[str] = []
    publisher = Slow(Home(tmp_path), said, fault)
    publisher.let.set()
    await after(publisher, replica_of(snapshot_every=1), 1)
    await publisher.finish()
    assert any(line.startswith("Model not published (E354). ") and "step 1" in line for line in said)
    publisher.fault = None
    await after(publisher, replica_of(snapshot_every=1), 2)
    await publisher.finish()
    assert publisher.sent == [2]
    assert "Solved: Model not published." in said


@pytest.mark.parametrize("later", [(), (2, 3)])
async def test_where_the_hub_is_away_the_newest_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: tuple[int, ...]
) -> None:
    pauses: list[float] = []
    publisher = Slow(Home(tmp_path), [], Problem.of("E346", endpoint="https://hub", reason="HTTP 503"))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        publisher.fault = None if len(pauses) == 7 else publisher.fault

    await after(publisher, replica_of(snapshot_every=1), 1, *later)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    publisher.let.set()
    await publisher.finish()
    assert publisher.sent == [later[-1] if later else 1]
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


async def test_a_child_that_dies_has_a_number(tmp_path: Path) -> None:
    publisher = HubPublisher(Home(tmp_path), Slow(Home(tmp_path), []).access, "no name", TOKEN, Heard([]))
    publisher.folder.mkdir(parents=True)
    with pytest.raises(Problem, match="E348"):
        await publisher._child()


async def test_its_own_commits_are_remembered(tmp_path: Path) -> None:
    publisher = Slow(Home(tmp_path), [])
    publisher._remember("c" * 40)
    assert json.loads((tmp_path / "published.json").read_bytes()) == {"amina/live": "c" * 40}
    assert publisher._known() == {"amina/live": "c" * 40}


def test_without_a_token_there_is_a_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "tokens"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Problem, match="E353"):
        hub_token()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub_token() == TOKEN


@pytest.mark.parametrize("is_last", [False, True])
async def test_its_card_says_what_the_site_knows(tmp_path: Path, is_last: bool) -> None:
    record = msgspec.structs.replace(
        commit_of(replica := replica_of()), step=replica.recipe.target_steps if is_last else 3
    )
    known = CardFacts(
        slug="words", title="Words", steps=record.step, loss=2.0, purpose="To learn.", points=((1, 5.0), (2, 2.0)),
        people=(Person("Teo", 0.5, 8),), unnamed=1, unnamed_share=0.5, unnamed_samples=8,
    )  # fmt: skip
    asked: list[str] = []

    def answer(path: str) -> Answer:
        asked.append(path)
        return (200, msgspec.to_builtins(known))

    with http_site(answer) as url:
        facts = await publisher_at(url, tmp_path)._facts(record, replica.recipe.target_steps)
    assert asked == [f"/api/v1/runs/a-run/facts?step={record.step}"]
    assert (facts.people, facts.points, facts.unnamed) == (known.people, known.points, 1)
    assert facts.purpose.startswith("A snapshot of a run that is still going on") == (not is_last)
    assert facts.purpose.endswith("To learn.")
    card = write_card(replica.recipe, facts, parameters=1)
    assert "| Teo | 8 | 50.0% |" in card
    assert "![Loss from 5.00 at step 1 to 2.00 at step 2]" in card


async def test_images_are_fetched_in_digest_order_until_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    async def fetch(home: Home, access: Any, recipe: Any, shard: m.Shard) -> Path:
        fetched.append(shard.digest[0])
        (path := tmp_path / f"{shard.digest}.safetensors").write_bytes(shard.digest.encode())
        return path

    monkeypatch.setattr(hub_publisher, "fetch_shard", fetch)
    publisher = Slow(Home(tmp_path), [])
    publisher.shards = tuple(
        m.Shard(letter * 64, size) for letter, size in (("d", 9), ("b", 96), ("a", 4000), ("c", 9))
    )
    publisher.folder.mkdir(parents=True)
    await publisher._fetch_data(ImageClassification())
    assert fetched == ["a", "b"]
    assert sorted(path.stem[0] for path in (publisher.folder / "shards").iterdir()) == fetched


async def test_a_site_that_knows_no_facts_leaves_the_card_short(tmp_path: Path) -> None:
    record = commit_of(replica := replica_of())
    with http_site(lambda _: (404, refusal("E305", address="x"))) as url:
        facts = await publisher_at(url, tmp_path)._facts(record, replica.recipe.target_steps)
    assert (facts.steps, facts.loss, facts.people) == (record.step, record.loss, ())


def commit_of(replica: Replica) -> Record:
    return record_after(replica, np.zeros(replica.layout.elements, np.float32))


def publisher_at(url: str, folder: Path) -> HubPublisher:
    access = OwnAccess(folder, TRAINER, Role.TRAINER, "")
    access.site = msgspec.structs.replace(access.site, url=url)
    return HubPublisher(Home(folder), access, "amina/live", TOKEN, Heard([]))
