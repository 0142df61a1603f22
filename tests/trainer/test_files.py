"""A run's files: downloads wait while the site is unreachable, and old files leave the cache."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.update_log import write_span
from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import SpanEntry
from peer_agent.protocol.recipe import ModelFile
from peer_agent.recipes.finetune_lora import Base, FinetuneLoRA
from peer_agent.site.credential import RunAccess
from peer_agent.trainer import files as site_files
from peer_agent.trainer import jobs
from peer_agent.trainer.files import STRANGE_TRIES, fetch_averages, fetch_model_files, fetch_snapshot, hand_in
from peer_agent.trainer.jobs import Follower
from peer_agent.training.replica import Replica
from tests.agent.scripted_site import RECIPE, TRAINER, OwnAccess
from tests.averaging.rounds import averaged, contributor, plan_of, record_of

SENDINGS = [contributor(1, 700).offer("fp16"), contributor(2, 300).offer("int8")]
SNAPSHOT = m.Snapshot(index=3, step=3, digest="", state_digest="", file="ab" * 32, size=10)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
async def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunAccess:
    monkeypatch.setattr(site_files, "PAUSE_S", 0.0)
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")
    await access.renew()
    return access


def place(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a snapshot")


def downloads(monkeypatch: pytest.MonkeyPatch, *refusals: str) -> list[str]:
    left = list(refusals)

    async def download(url: str, path: Path, **_: Any) -> None:
        if left:
            code = left.pop(0)
            raise Problem.of(code, url=url, reason="a test", name=path.name, path=path)
        place(path)

    monkeypatch.setattr(site_files, "download", download)
    return left


async def test_model_files_are_fetched_and_those_of_another_removed(
    home: Home, access: RunAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (await fetch_model_files(home, access, RECIPE)).exists(), "one that begins from nothing"
    asked: list[tuple[str, str, int]] = []

    async def download(url: str, path: Path, *, sha256: str, size_limit: int, **_: Any) -> None:
        asked.append((url.rpartition("/api/")[2], sha256, size_limit))
        place(path)

    monkeypatch.setattr(site_files, "download", download)
    for letter in "ab":
        recipe = FinetuneLoRA(base=Base(file=ModelFile(letter * 64, 7)))
        for _ in range(2):
            folder = await fetch_model_files(home, access, recipe)
            assert [path.name for path in folder.iterdir()] == [f"{letter * 64}.safetensors"]
    assert asked == [(f"v1/files/models/{letter * 64}", letter * 64, 7) for letter in "ab"]


async def test_a_site_that_is_restarted_is_waited_for(
    home: Home, access: RunAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: the agent ended with E104 if it needed a file during a site restart."""
    downloads(monkeypatch, *["E104"] * 20, "E110")
    assert (await fetch_snapshot(home, access, SNAPSHOT)).read_bytes() == b"a snapshot"


@pytest.mark.parametrize(("code", "tries"), [("E110", STRANGE_TRIES), ("E111", 1), ("E106", 1)])
async def test_what_does_not_heal_is_told(
    home: Home, access: RunAccess, monkeypatch: pytest.MonkeyPatch, code: str, tries: int
) -> None:
    left = downloads(monkeypatch, *[code] * 10)
    with pytest.raises(Problem, match=code):
        await fetch_snapshot(home, access, SNAPSHOT)
    assert len(left) == 10 - tries


async def test_older_snapshots_and_their_parts_leave_the_cache(
    home: Home, access: RunAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads(monkeypatch)
    folder = home.cache / "snapshots"
    folder.mkdir(parents=True)
    for name in ("old.safetensors", "older.safetensors.part"):
        (folder / name).touch()
    path = await fetch_snapshot(home, access, SNAPSHOT)
    assert list(folder.iterdir()) == [path]


async def test_copies_leave_the_cache_even_those_of_a_killed_agent(
    home: Home, access: RunAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    async def upload(_: str, path: Path, __: object) -> None:
        seen.append([other.name for other in path.parent.iterdir()])

    monkeypatch.setattr(site_files, "upload", upload)
    home.cache.mkdir()
    for name in ("state-10.safetensors", "state-20.safetensors.part"):
        (home.cache / name).touch()
    await hand_in(home, access, Replica(RECIPE).copy_state(), View(io.StringIO()))
    assert seen == [["state-0.safetensors"]]
    assert not list(home.cache.iterdir())


async def test_a_disk_that_is_too_full_for_a_copy_ends_nothing(home: Home, access: RunAccess) -> None:
    home.cache.touch()  # a file in place of the cache, so that no folder can be created
    words = io.StringIO()
    await hand_in(home, access, Replica(RECIPE).copy_state(), View(words))
    assert "E106" in words.getvalue()


class TestArchive:
    """Averages that no relay has come from the site's archive."""

    RECORD = record_of(plan_of(SENDINGS), averaged(plan_of(SENDINGS), SENDINGS)[0])

    def answers(self, monkeypatch: pytest.MonkeyPatch, answer: bytes | Problem) -> list[tuple[str, int]]:
        asked: list[tuple[str, int]] = []

        async def get_bytes(url: str, *, limit: int, headers: Any) -> bytes:
            assert "Authorization" in headers
            asked.append((url.rpartition("/api/")[2], limit))
            if isinstance(answer, Problem):
                raise answer
            return answer

        monkeypatch.setattr(site_files, "get_bytes", get_bytes)
        return asked

    async def test_span_is_fetched(self, access: RunAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spans, payloads = averaged(plan_of(SENDINGS), SENDINGS)
        write_span(tmp_path / "span", spans[0].leaves, spans[0].payloads)
        data = (tmp_path / "span").read_bytes()
        asked = self.answers(monkeypatch, data)
        found = await fetch_averages(access, self.RECORD, self.RECORD.spans[0])
        assert found == [payloads[chunk] for chunk in range(spans[0].first, spans[0].stop)]
        assert asked == [(f"v1/files/averages/{self.RECORD.index}/0", len(data))]

    @pytest.mark.parametrize("answer", [Problem.of("E110", url="", reason=""), b"", b"MHSPAN1\n\xff\xff\xff\xff"])
    async def test_anything_else_is_none(
        self, access: RunAccess, monkeypatch: pytest.MonkeyPatch, answer: bytes | Problem
    ) -> None:
        self.answers(monkeypatch, answer)
        assert await fetch_averages(access, self.RECORD, self.RECORD.spans[0]) is None

    async def test_follower_asks_it_after_the_relays(self, access: RunAccess, monkeypatch: pytest.MonkeyPatch) -> None:
        spans, payloads = averaged(plan_of(SENDINGS), SENDINGS)
        asked: list[str] = []

        async def relays(*_: Any) -> bool:
            asked.append("relays")
            return False

        async def archive(_: RunAccess, record: Any, entry: SpanEntry) -> list[bytes]:
            asked.append("archive")
            assert record is self.RECORD
            return [payloads[chunk] for chunk in range(entry.first, entry.stop)]

        monkeypatch.setattr(jobs, "fetch_averages", archive)
        follower = Follower(access.home, access, cast("Any", SimpleNamespace(fetch=relays)), cast("Any", None))
        assembly = Assembly(Grid(self.RECORD.elements, self.RECORD.chunk_elements), self.RECORD.codec)
        assert await follower.gather(self.RECORD, assembly, patient=False) is None
        assert asked == ["relays"] * len(spans), "a newer snapshot is better than the archive"
        asked.clear()
        assert await follower.gather(self.RECORD, assembly, patient=True) is not None
        assert asked == ["relays"] * len(spans) + ["relays", "archive"] * len(spans)
