"""Texts that stay on the Hub: a sample, a list of the rest, and the shards that machines make from the rest. A strict
double stands in for the Hub.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import portions, row_groups
from peer_agent.publishing.documents import open_column
from peer_agent.publishing.portions import (
    Listing,
    RangeFile,
    RemoteFile,
    listing_of,
    make_portion,
    make_shard,
    portions_of,
)
from peer_agent.publishing.row_groups import Group, Groups
from peer_agent.publishing.tokenizer import save_tokenizer, train_tokenizer
from peer_agent.recipes.text.portion import Cutting, Portion, portion_in
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import load_sentences, load_shard
from peer_agent.site_work import prepare_text as prepare_module
from peer_agent.site_work import streaming
from peer_agent.site_work.fetching import Wanted, look
from peer_agent.site_work.intake.chat import ChatTemplate, Writer
from peer_agent.site_work.intake.texts import Source, open_texts
from peer_agent.site_work.prepare_text import PreparedText, Texts, cut, prepare
from peer_agent.site_work.streaming import fetch_sample
from tests.publishing.hub_double import Hub, running_hub

MOST = 1 << 20
ROWS, GROUP = 600, 100  # rows in each file; rows in a row group
WORDS = ["many", "hands", "make", "light", "work", "when", "rivers", "carry", "boats", "and", "nobody", "counts"]
PREPARATION = TextPreparation(vocab=320)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        hub.put_files("datasets/amina/proverbs", {f"data/train-{n}.parquet": texts(n) for n in range(2)})
        yield hub


def texts(seed: int, rows: int = ROWS) -> bytes:
    """Return a Parquet file of distinct texts, with one unused column."""
    chance = np.random.default_rng(seed)
    said = [f"{seed} {number}: {' '.join(chance.choice(WORDS, 30))}." for number in range(rows)]
    file = io.BytesIO()
    parquet.write_table(pa.table({"id": range(rows), "text": said, "note": ["n"] * rows}), file, row_group_size=GROUP)
    return file.getvalue()


def wanted(hub: Hub, files: str = "") -> Wanted:
    return Wanted(repository="amina/proverbs", endpoint=hub.url, kind="dataset", files=files)


def sampled(hub: Hub, folder: Path, most: int = 80_000) -> Path:
    fetch_sample(wanted(hub), hub.repositories["datasets/amina/proverbs"].head, folder / "text", most=most)
    return folder / "text"


def prepared(hub: Hub, folder: Path, preparation: TextPreparation = PREPARATION) -> PreparedText:
    return prepare(sampled(hub, folder), folder / "out", preparation)


def streamed(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "out" / "shards").iterdir() if portion_in(path) is not None)


def made(hub: Hub, folder: Path, file: Path, name: str = "made") -> Path:
    make_portion(file, folder / "out" / "tokenizer" / "tokenizer.json", folder / name, hub.url)
    return folder / name


# Inspection


def test_text_beyond_the_fetch_limit_is_streamed_if_public(hub: Hub) -> None:
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
    assert caught.value.fault.code == ("E453" if closed == "gated" else "E304")


# The sample, and the rest


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
    copy, copied = Groups.copy, list[Path]()

    def broken(groups: Groups, numbers: list[int], columns: list[str], path: Path) -> None:
        if copied:
            raise Problem.of("E346", endpoint=hub.url, reason="gone")
        copied.append(path)
        copy(groups, numbers, columns, path)

    with monkeypatch.context() as patch:
        patch.setattr(Groups, "copy", broken)
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


# A machine's shards


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
    broken[4 : len(broken) * 9 // 10] = bytes(len(broken) * 9 // 10 - 4)  # everything except the footer
    hub.damaged[portion.file] = bytes(broken)
    one, other = made(hub, tmp_path, file, "one"), made(hub, tmp_path, file, "other")
    assert one.read_bytes() == other.read_bytes()
    assert load_shard(one).tolist() == [portion.cutting.end] * portion.tokens


def test_what_goes_wrong_on_the_way_is_not_taken_for_broken_rows(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(hub, tmp_path)
    stored = hub.repositories["datasets/amina/proverbs"].commits[-1][1]["data/train-0.parquet"]
    monkeypatch.setattr(portions, "READ_BYTES", len(stored.content) + 1000)  # enough for the footer
    with pytest.raises(Problem) as caught:
        made(hub, tmp_path, streamed(tmp_path)[0])
    assert caught.value.fault.code == "E414"


def test_parts_of_a_large_row_group_share_its_rows(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "LARGEST", 1000)
    monkeypatch.setattr(portions, "MOST_TOKENS", 2000)
    monkeypatch.setattr("peer_agent.publishing.tokenizer.SHARD_TOKENS", 1000)
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
        portions.make_portion(path, path, tmp_path / "out", "http://127.0.0.1:9")
    path.write_bytes(b"no tensors")
    assert portion_in(path) is None


# Untrusted files


def put_rows(hub: Hub, table: pa.Table, **options: Any) -> None:
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    hub.repositories.pop("datasets/amina/proverbs")
    hub.put_files("datasets/amina/proverbs", {"data/train-0.parquet": file.getvalue()})


def first_portion(folder: Path) -> tuple[Path, Portion]:
    file = streamed(folder)[0]
    portion = portion_in(file)
    assert portion is not None
    return file, portion


@pytest.mark.check
def test_what_unpacks_to_more_than_it_says_ends_at_a_bound(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [f"{number % 3} {'many hands ' * 500}" for number in range(12_000)]  # three texts, repeated
    put_rows(hub, pa.table({"text": said}), row_group_size=1000)
    prepared(hub, tmp_path)
    file, portion = first_portion(tmp_path)
    listing = listing_of(tmp_path / "text")
    assert listing is not None
    assert listing.files[0].groups[0].sizes["text"] < 100_000, "of five megabytes"
    copied = tmp_path / "copied"
    monkeypatch.setattr(row_groups, "WRITTEN_BYTES", 1_000_000)
    with remote_of(hub, portion) as remote_file:
        Groups(cast("io.BytesIO", remote_file)).copy([portion.first], ["text"], copied)
    rows = parquet.read_table(copied).num_rows
    assert 100 < rows < 200, "of a thousand with 5,500 letters each"
    assert len(load_shard(made(hub, tmp_path, file))) == portion.tokens


def remote_of(hub: Hub, portion: Portion) -> RangeFile:
    about: dict[str, Any] = {"size": portion.size, "endpoint": hub.url, "most": MOST * 100}
    return RangeFile(portion.repository, portion.commit, portion.file, **about)


def test_texts_that_are_repeated_are_cut_not_refused(hub: Hub, tmp_path: Path) -> None:
    """An upload with repeated texts is refused (E395). Streamed texts must not be refused, or one machine after
    another would stop.
    """
    said = [f"{number % 50} {'many hands ' * 2100}" for number in range(9000)]
    put_rows(hub, pa.table({"text": said}), row_group_size=3000)
    fetch_sample(wanted(hub), hub.repositories["datasets/amina/proverbs"].head, tmp_path / "text", most=2_000_000)
    (sample,) = (tmp_path / "text").iterdir()
    with open_column(sample, "text", tmp_path / "scratch") as documents:
        assert documents.bytes > 64 << 20


def test_rows_without_text_come_first(hub: Hub, tmp_path: Path) -> None:
    prepared(hub, tmp_path)
    _, portion = first_portion(tmp_path)
    rows = tmp_path / "rows"
    parquet.write_table(pa.table({"text": [*[None] * 1200, *(f"{n}: {' '.join(WORDS)}" for n in range(300))]}), rows)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    make_shard(portion, rows, tokenizer, tmp_path / "made")
    assert len(set(load_shard(tmp_path / "made").tolist())) > 20, "not the end of a text again and again"


def test_no_more_is_read_than_is_bounded(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(hub, tmp_path)
    _, portion = first_portion(tmp_path)
    with remote_of(hub, portion) as file:
        groups = Groups(cast("io.BytesIO", file))
        monkeypatch.setattr(row_groups, "GROUP_BYTES", 2 * groups._packed_bytes(0, {"text"}) + 1000)
        groups.copy(range(5), ["text"], tmp_path / "copied")
        assert parquet.read_table(tmp_path / "copied").num_rows == 2 * GROUP
        groups.copy([99], ["text"], tmp_path / "none")
        assert parquet.read_table(tmp_path / "none").num_rows == 0, "what is not there is not read"


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError, pa.ArrowMemoryError, MemoryError])
def test_missing_codec_is_not_taken_for_broken_rows(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    prepared(hub, tmp_path)

    def failing(*_: Any, **__: Any) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"text": ["many hands"]})
        raise error("no such codec")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", failing)
    with pytest.raises(Problem) as caught:
        made(hub, tmp_path, streamed(tmp_path)[0])
    assert caught.value.fault.code == "E416"


def test_a_column_that_is_too_large_is_left_out_alone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{number} {' '.join(WORDS)}" for number in range(3000)]
    pages = [np.random.default_rng(number).bytes(300).hex() for number in range(3000)]
    put_rows(hub, pa.table({"text": words, "page": pages}), row_group_size=500)
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 100_000)
    prepared(hub, tmp_path)
    listing = listing_of(tmp_path / "text")
    assert listing is not None
    assert {tuple(group.sizes) for group in listing.files[0].groups} == {("text",)}
    assert first_portion(tmp_path)[1].column == "text"


def test_rows_that_nobody_reads_are_told(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"{number} {' '.join(WORDS)} " * (1 if number < 2500 else 9) for number in range(3000)]
    put_rows(hub, pa.table({"text": words}), row_group_size=500)
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 100_000)
    assert "500 rows there are left out: their row groups are too large." in prepared(hub, tmp_path).ready
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 1000)
    with pytest.raises(Problem) as caught:
        sampled(hub, tmp_path / "other")
    assert caught.value.fault.code == "E417"


def test_neighbours_in_a_file_part_ways(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer_agent.publishing.tokenizer.SHARD_TOKENS", 1000)
    made = prepared(hub, tmp_path)
    names = [tmp_path / "out" / "shards" / f"{shard.digest}.safetensors" for shard in made.shards]
    order = [(found.file, found.first) for path in names if (found := portion_in(path)) is not None]
    assert len(order) > 5
    assert order != sorted(order), "else a run would see the first files alone"
    again = prepared(hub, tmp_path / "again")
    assert [shard.digest for shard in again.shards] == [shard.digest for shard in made.shards]


def test_portions_of_very_large_data_are_larger() -> None:
    groups = [Group(1000, {"text": 4_400_000})] * 500
    files = [RemoteFile(f"train-{number}.parquet", 1 << 30, ["text"], groups) for number in range(1000)]
    listing = Listing("amina/proverbs", "0" * 40, files, [(0, 0)])
    cutting = Cutting("0" * 64, 0, sentences=False)
    found = portions_of(listing, "text", 2_600_000, cutting)
    assert len(found) < 2 * portions.MOST_PORTIONS, "each is larger"
    assert {portion.parts for portion in found} == {1}
    assert sum(portion.tokens for portion in found) == 2_600_000 * 499_999
    assert len({portion.file for portion in found[:100]}) > 50, "the first ones are of everywhere"


def test_what_a_run_cannot_list_is_told(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer_agent.publishing.tokenizer.SHARD_TOKENS", 1000)
    monkeypatch.setattr(prepare_module, "MOST_PORTIONS", 2)
    assert "tokens there are left out: a run lists no more shards." in prepared(hub, tmp_path).ready
    assert len(streamed(tmp_path)) == 2


def test_too_many_row_groups_must_be_named_in_parts(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MOST_LISTED", 7)
    with pytest.raises(Problem) as caught:
        sampled(hub, tmp_path)
    assert caught.value.fault.code == "E396"


def test_groups_that_say_they_are_empty_are_no_endless_sample() -> None:
    files = [RemoteFile("train.parquet", 1 << 20, ["text"], [Group(1, {"text": 0})] * 100_000)]
    assert len(streaming._sampled(files, 1 << 28)) <= streaming.MOST_SAMPLED + 1


def test_smallest_group_is_the_sample_if_all_are_too_large() -> None:
    sizes = [500, 400, 450]
    files = [RemoteFile("train.parquet", 1 << 20, ["text"], [Group(1, {"text": size}) for size in sizes])]
    assert streaming._sampled(files, 300) == [(0, 1)]


def test_conversations_stay_where_they_are(hub: Hub, tmp_path: Path) -> None:
    said = [[{"role": "user", "content": f"hands {number}?"}] for number in range(2000)]
    ids = [np.random.default_rng(number).bytes(16).hex() for number in range(2000)]
    put_rows(hub, pa.table({"prompt_id": ids, "messages": said}), row_group_size=200)
    text = sampled(hub, tmp_path, most=200_000)
    template = "{% for each in messages %}{{ each['content'] }}{% endfor %}"
    writer, scratch = Writer(ChatTemplate(template, {})), tmp_path / "scratch"
    with writer, open_texts(Source(text), scratch, writer) as opened:
        documents = opened.documents
        assert documents.are_conversations, "and not what a column of numbers says"
        tokenizer = train_tokenizer((documents[number] for number in range(len(documents))), PREPARATION)
        save_tokenizer(tokenizer, tmp_path / "out" / "tokenizer")
        with pytest.raises(Problem) as caught:
            cut([Texts(0, text, opened, [])], tmp_path / "out", tokenizer)
    assert caught.value.fault.code == "E415"
