"""Texts that stay on a strict Hub: a sample of them, a list of the rest, and shards that machines make of it."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import portion as portions_here
from peer_agent.publishing import streaming
from peer_agent.publishing.hub import fetching, patience, ranges
from peer_agent.publishing.hub.fetching import Wanted, look
from peer_agent.publishing.hub.ranges import RangeFile
from peer_agent.publishing.portion import make_portion
from peer_agent.publishing.streaming import fetch_sample
from peer_agent.publishing.text.portions import listing_of
from peer_agent.publishing.text.prepare import PreparedText, prepare
from peer_agent.publishing.text.row_groups import copy_groups
from peer_agent.recipes.text.portion import portion_in
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import load_sentences, load_shard
from tests.publishing.hub.hub_double import Hub, running_hub

MOST = 1 << 20
ROWS, GROUP = 600, 100  # of each file, and of a row group
WORDS = ["many", "hands", "make", "light", "work", "when", "rivers", "carry", "boats", "and", "nobody", "counts"]
PREPARATION = TextPreparation(vocab=320)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.001,) * 4)
    for module in (fetching, ranges):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        hub.put_files("datasets/amina/proverbs", {f"data/train-{n}.parquet": texts(n) for n in range(2)})
        yield hub


def texts(seed: int, rows: int = ROWS) -> bytes:
    """A Parquet file of texts that differ, with a column that nobody learns from."""
    chance = np.random.default_rng(seed)
    said = [f"{seed} {number}: {' '.join(chance.choice(WORDS, 30))}." for number in range(rows)]
    file = io.BytesIO()
    parquet.write_table(pa.table({"id": range(rows), "text": said, "note": ["n"] * rows}), file, row_group_size=GROUP)
    return file.getvalue()


def wanted(hub: Hub, files: str = "") -> Wanted:
    return Wanted(repository="amina/proverbs", endpoint=hub.url, kind="dataset", files=files)


def sampled(hub: Hub, folder: Path, most: int = 80_000) -> Path:
    """A folder with some of the row groups."""
    fetch_sample(wanted(hub), hub.repositories["datasets/amina/proverbs"].head, folder / "text", most=most)
    return folder / "text"


def prepared(hub: Hub, folder: Path, preparation: TextPreparation = PREPARATION) -> PreparedText:
    return prepare(sampled(hub, folder), folder / "out", preparation)


def streamed(folder: Path) -> list[Path]:
    """The shards that are to be made."""
    return sorted(path for path in (folder / "out" / "shards").iterdir() if portion_in(path) is not None)


def made(hub: Hub, folder: Path, file: Path, name: str = "made") -> Path:
    make_portion(file, folder / "out" / "tokenizer" / "tokenizer.json", folder / name, hub.url)
    return folder / name


def remote(hub: Hub, content: bytes, most: int = MOST, size: int | None = None) -> RangeFile:
    commit = hub.put_files("datasets/amina/bytes", {"a.bin": content}).head
    length = len(content) if size is None else size
    return RangeFile("amina/bytes", commit, "a.bin", size=length, endpoint=hub.url, most=most)


# What is looked at


def test_more_than_is_fetched_is_streamed_where_everybody_may_read_it(hub: Hub) -> None:
    found = look(wanted(hub), "", most=10_000)
    assert found.streamed
    assert found.size > 10_000
    assert not look(wanted(hub), "", most=MOST).streamed


@pytest.mark.parametrize("closed", ["private", "gated", "lines"])
def test_what_machines_could_not_read_is_too_large(hub: Hub, closed: str) -> None:
    token = hub.account("amina", "hf_a")
    if closed == "lines":
        hub.repositories.pop("datasets/amina/proverbs")
        hub.put_files("datasets/amina/proverbs", {"data/train.jsonl": b'{"text": "many hands"}\n' * 1000})
    repository = hub.repositories["datasets/amina/proverbs"]
    repository.private = closed == "private"
    if closed == "gated":
        repository.gated = True
    with pytest.raises(Problem) as caught:
        look(wanted(hub), token, most=10_000)
    assert caught.value.fault.code == ("E397" if closed == "gated" else "E304")


# Ranges


def test_a_file_is_read_by_ranges_over_connections_that_end_early(hub: Hub) -> None:
    content = bytes(range(256)) * 40
    file = remote(hub, content)
    hub.cut_after = 700
    file.seek(-300, io.SEEK_END)
    assert file.read() == content[-300:]
    file.seek(100)
    assert file.read(3000) == content[100:3100]
    assert file.tell() == 3100
    hub.sent = 0
    assert file.read(10) == content[3100:3110]
    assert hub.sent == 10, "and no more than was asked for"


def test_a_hub_that_sends_nothing_is_away(hub: Hub) -> None:
    file = remote(hub, bytes(5000))
    hub.failing = 1.0
    with pytest.raises(Problem) as caught:
        file.read(10)
    assert caught.value.fault.code == "E346"


@pytest.mark.parametrize("strange", ["whole", "other size", "too much"])
def test_another_file_is_told_from_the_one_that_was_listed(hub: Hub, strange: str) -> None:
    file = remote(hub, bytes(5000), most=100 if strange == "too much" else MOST)
    if strange == "whole":
        hub.ignores_ranges = True
    if strange == "other size":
        hub.damaged["a.bin"] = bytes(6000)
    with pytest.raises(Problem) as caught:
        file.read(200)
    assert caught.value.fault.code == "E414"


def test_a_repository_that_is_gone_is_said_to_be(hub: Hub) -> None:
    file = remote(hub, bytes(5000))
    hub.repositories.pop("datasets/amina/bytes")
    with pytest.raises(Problem) as caught:
        parquet.ParquetFile(cast("io.BytesIO", file))
    assert caught.value.fault.code == "E397", "also through the library that asks"


# The sample, and what is left


def test_a_sample_is_fetched_and_the_rest_is_listed(hub: Hub, tmp_path: Path) -> None:
    text = sampled(hub, tmp_path)
    listing = listing_of(text)
    assert listing is not None
    assert [len(file.groups) for file in listing.files] == [ROWS // GROUP] * 2
    assert 0 < len(listing.sampled) < 2 * ROWS // GROUP
    assert len(list(text.iterdir())) == len(listing.sampled)
    assert {file for file, _ in listing.sampled} == {0, 1}, "it is of everywhere"
    assert list(listing.files[0].groups[0].sizes) == ["text", "note"]
    assert hub.authorizations == set(), "a machine without a token may read it too"


def test_a_sample_goes_on_where_it_ended(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, copied = copy_groups, list[Path]()

    def broken(file: io.BytesIO, groups: list[int], columns: list[str], path: Path) -> None:
        if copied:
            raise Problem.of("E346", endpoint=hub.url, reason="gone")
        copied.append(path)
        copy(file, groups, columns, path)

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "copy_groups", broken)
        with pytest.raises(Problem):
            sampled(hub, tmp_path)
    assert listing_of(tmp_path / "text") is None, "not whole yet"
    (first,) = (tmp_path / "text").iterdir()
    hub.seen.clear()
    before = first.stat().st_mtime_ns
    text = sampled(hub, tmp_path)
    assert first.stat().st_mtime_ns == before
    again = sampled(hub, tmp_path / "other")
    assert {path.name: parquet.read_table(path).to_pydict() for path in text.iterdir()} == {
        path.name: parquet.read_table(path).to_pydict() for path in again.iterdir()
    }


def test_rows_without_texts_are_refused(hub: Hub, tmp_path: Path) -> None:
    file = io.BytesIO()
    parquet.write_table(pa.table({"id": range(2000)}), file, row_group_size=GROUP)
    hub.repositories.pop("datasets/amina/proverbs")
    hub.put_files("datasets/amina/proverbs", {"train.parquet": file.getvalue()})
    with pytest.raises(Problem) as caught:
        sampled(hub, tmp_path)
    assert caught.value.fault.code == "E382"


def test_what_is_left_becomes_shards_that_say_where_it_is(hub: Hub, tmp_path: Path) -> None:
    done = prepared(hub, tmp_path)
    portions = [found for path in streamed(tmp_path) if (found := portion_in(path)) is not None]
    listing = listing_of(tmp_path / "text")
    assert listing is not None
    covered = {
        (listing.files[0].name == portion.file, group)
        for portion in portions
        for group in range(portion.first, portion.first + portion.groups)
    }
    sampled_here = {(file == 0, group) for file, group in listing.sampled}
    assert not covered & sampled_here, "nothing is learned twice"
    assert len(covered) + len(sampled_here) == 2 * ROWS // GROUP, "and nothing is left out"
    assert sum(len(range(portion.groups)) for portion in portions) == len(covered)
    assert done.size == sum(shard.size for shard in done.shards)
    assert f"{sum(portion.tokens for portion in portions):,} of these tokens stay on the Hub" in done.ready


# What a machine makes of it


def test_a_shard_has_the_rows_and_as_many_tokens_as_were_stated(hub: Hub, tmp_path: Path) -> None:
    prepared(hub, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    for number, file in enumerate(streamed(tmp_path)):
        portion = portion_in(file)
        assert portion is not None
        tokens = load_shard(made(hub, tmp_path, file, f"made-{number}"))
        assert len(tokens) == portion.tokens
        said = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        seed = portion.file.removeprefix("data/train-").removesuffix(".parquet")
        rows = range(portion.first * GROUP, (portion.first + portion.groups) * GROUP)
        there = [f"{seed} {row}: " in said for row in rows]
        assert sum(there) > 0.9 * len(there), "all but a few that were cut away"
        assert f"{seed} {rows.stop}: " not in said
    assert number > 0


def test_everybody_makes_the_same(hub: Hub, tmp_path: Path) -> None:
    prepared(hub, tmp_path)
    file = streamed(tmp_path)[0]
    hub.cut_after = 900
    one = made(hub, tmp_path, file, "one").read_bytes()
    hub.cut_after = 0
    assert made(hub, tmp_path, file, "other").read_bytes() == one
    assert not list(tmp_path.glob("o*.parquet")) + list(tmp_path.glob("o*.rows"))


def test_only_what_is_wanted_is_read(hub: Hub, tmp_path: Path) -> None:
    rows = io.BytesIO()
    said = [f"{number} {' '.join(WORDS)}" for number in range(4000)]
    table = pa.table({"text": said, "blob": [np.random.default_rng(number).bytes(400) for number in range(4000)]})
    parquet.write_table(table, rows, row_group_size=500)
    hub.put_files("datasets/amina/proverbs", {"data/train-0.parquet": rows.getvalue()})
    prepared(hub, tmp_path)
    file = next(path for path in streamed(tmp_path) if "train-0" in str(portion_in(path)))
    hub.sent = 0
    made(hub, tmp_path, file)
    assert hub.sent < len(rows.getvalue()) / 4


def test_sentences_begin_where_they_begin(hub: Hub, tmp_path: Path) -> None:
    prepared(hub, tmp_path, TextPreparation(vocab=320, sentences=True))
    file = streamed(tmp_path)[0]
    portion = portion_in(file)
    assert portion is not None
    shard = load_sentences(made(hub, tmp_path, file))
    assert len(shard.tokens) == portion.tokens
    assert shard.starts[0] == 0
    assert np.all(np.diff(shard.starts.astype(np.int64)) > 0)
    assert shard.starts[-1] < portion.tokens
    assert len(shard.starts) > GROUP / 2


def test_a_row_group_that_is_broken_gives_a_shard_all_the_same(hub: Hub, tmp_path: Path) -> None:
    prepared(hub, tmp_path)
    file = streamed(tmp_path)[0]
    portion = portion_in(file)
    assert portion is not None
    stored = hub.repositories["datasets/amina/proverbs"].commits[-1][1][portion.file]
    broken = bytearray(stored.content)
    broken[4 : len(broken) * 9 // 10] = bytes(len(broken) * 9 // 10 - 4)  # all but the footer
    hub.damaged[portion.file] = bytes(broken)
    one, other = made(hub, tmp_path, file, "one"), made(hub, tmp_path, file, "other")
    assert one.read_bytes() == other.read_bytes()
    assert load_shard(one).tolist() == [portion.cutting.end] * portion.tokens


def test_what_goes_wrong_on_the_way_is_not_taken_for_broken_rows(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(hub, tmp_path)
    stored = hub.repositories["datasets/amina/proverbs"].commits[-1][1]["data/train-0.parquet"]
    monkeypatch.setattr(portions_here, "READ_BYTES", len(stored.content) + 1000)  # enough for the footer
    with pytest.raises(Problem) as caught:
        made(hub, tmp_path, streamed(tmp_path)[0])
    assert caught.value.fault.code == "E414"


def test_parts_of_a_large_row_group_share_its_rows(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peer_agent.publishing.text import portions, shards

    monkeypatch.setattr(portions, "LARGEST", 1000)
    monkeypatch.setattr(portions, "MOST_TOKENS", 2000)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 1000)
    prepared(hub, tmp_path)
    files = streamed(tmp_path)
    first = [path for path in files if (found := portion_in(path)) and found.file.endswith("0.parquet")]
    groups = {(found.first, found.groups) for path in first if (found := portion_in(path))}
    where = min(groups)
    parts = [path for path in first if (found := portion_in(path)) and (found.first, found.groups) == where]
    assert len(parts) > 1
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    said = [tokenizer.decode(load_shard(made(hub, tmp_path, path)).tolist()) for path in parts]
    for row in range(where[0] * GROUP, (where[0] + where[1]) * GROUP):
        assert sum(f"0 {row}: " in text for text in said) <= 1


def test_a_file_that_says_nonsense_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save

    path = tmp_path / "shard.safetensors"
    path.write_bytes(save({}, metadata={"portion": '{"repository": "a/b"}'}))
    with pytest.raises(Problem) as caught:
        portion_in(path)
    assert caught.value.fault.code == "E414"
    path.write_bytes(save({"tokens": np.arange(3, dtype=np.uint16)}))
    assert portion_in(path) is None
    with pytest.raises(Problem):
        portions_here.make_portion(path, path, tmp_path / "out", "http://127.0.0.1:9")
    path.write_bytes(b"no tensors")
    assert portion_in(path) is None
