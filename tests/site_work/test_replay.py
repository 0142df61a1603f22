"""A snapshot and the log give the replicas' state, bit for bit. Missing or different bytes get an error number."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from peer_agent.averaging.codecs import decode, encode, sum_squares
from peer_agent.averaging.update_log import write_span
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.merkle import leaf_of, root_of
from peer_agent.protocol.log.records import SpanEntry, digest_of, seal, to_lines
from peer_agent.site_work.replay import Logs, Replayed, make_initial, replay
from peer_agent.training.replica import Replica
from tests.training.commits import SITE_KEY, Vector, record_after, small_recipe

STEPS = 3


class Story:
    """A run of three steps as stored by the site and one relay, and what its replica reports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.records = folder, folder / "log", folder / "records"
        self.told: list[int] = []
        self.replica = Replica(small_recipe())
        for place in ("log/spans", "log/tentative", "records"):
            (folder / place).mkdir(parents=True)
        self.begins = self.replica.save(folder / "snapshot.safetensors")
        for step in range(1, STEPS + 1):
            self.step(step)

    def step(self, step: int) -> None:
        average = np.random.Generator(np.random.Philox(step)).standard_normal(self.replica.layout.elements)
        self.commit(average.astype(np.float32))

    def commit(self, average: Vector) -> None:
        replica = self.replica
        grid = grid_of(average.size)
        payloads = [encode("fp32", average[slice(*grid.bounds(chunk))]) for chunk in grid]
        leaves = [leaf_of(p, sum_squares(decode("fp32", p, len(p) // 4))) for p in payloads]
        record = record_after(replica, average)
        entry: SpanEntry = msgspec.structs.replace(record.spans[0], root=root_of(leaves).hex())
        record = msgspec.structs.replace(record, spans=(entry,))
        sealed = seal(SITE_KEY, record)
        write_span(self.log / "spans" / f"{record.index:08d}-0.span", leaves, payloads)
        (self.records / f"{record.index:012d}.json").write_bytes(to_lines(sealed))
        replica.apply(record, digest_of(sealed), average)

    def span(self, index: int) -> Path:
        return self.log / "spans" / f"{index:08d}-0.span"

    def replay(self, expected: str = "") -> Replayed:
        return replay(
            recipe=small_recipe(),
            snapshot=self.folder / "snapshot.safetensors",
            records=self.records,
            logs=Logs([self.folder / "empty", self.log]),
            site_key=public_bytes(SITE_KEY),
            out=self.folder / "out",
            begins=self.begins,
            expected=expected,
            tell=self.told.append,
        )


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_the_state_is_the_replicas_to_the_bit(story: Story, tmp_path: Path) -> None:
    made = story.replay()
    assert (made.index, made.step, made.state_digest) == (STEPS, STEPS, story.replica.digest())
    assert made.log_digest == story.replica.log_digest
    assert made.file == story.replica.save(tmp_path / "theirs.safetensors")
    assert (tmp_path / "out" / f"{made.file}.safetensors").stat().st_size == made.size


def test_bytes_that_the_relay_has_not_settled_yet_are_found(story: Story) -> None:
    """The commit did not reach the relay, so its span is still a tentative one."""
    record = msgspec.json.decode((story.records / f"{STEPS:012d}.json").read_bytes().split(b"\n")[0])
    root = record["spans"][0][5]
    story.span(STEPS).rename(story.log / "tentative" / f"{STEPS - 1}-1-1-0-{root}.span")
    assert story.replay().state_digest == story.replica.digest()


def test_missing_bytes_have_a_number(story: Story) -> None:
    story.span(2).unlink()
    with pytest.raises(Problem, match=r"E341: .* step 2\."):
        story.replay()


def test_damaged_bytes_are_no_bytes(story: Story) -> None:
    whole = bytearray(story.span(2).read_bytes())
    whole[-1] ^= 1
    story.span(2).write_bytes(whole)
    with pytest.raises(Problem, match=r"E341: .* step 2\."):
        story.replay()


def test_each_step_is_told(story: Story) -> None:
    story.replay()
    assert story.told == [1, 2, 3]


def test_a_state_that_is_there_already_is_not_written(story: Story) -> None:
    expected = story.replica.state_hash()[0]
    assert story.replay(expected).file == expected
    assert not (story.folder / "out").exists()


def test_a_snapshot_that_has_changed_on_the_disk_is_no_beginning(story: Story) -> None:
    other = Replica(small_recipe())
    other.parameters[0] += 1
    other.save(story.folder / "snapshot.safetensors")
    with pytest.raises(Problem, match=r"E342: .* step 0 .*has changed"):
        story.replay()


def test_a_gap_in_the_records_has_a_number(story: Story) -> None:
    (story.records / f"{2:012d}.json").unlink()
    with pytest.raises(Problem, match=r"E342: .*cannot follow"):
        story.replay()


def test_a_record_that_the_site_did_not_sign_is_refused(story: Story) -> None:
    path = story.records / f"{2:012d}.json"
    path.write_bytes(path.read_bytes().replace(b'"loss":0.0', b'"loss":1.0'))
    with pytest.raises(Problem, match="E218"):
        story.replay()


def test_a_replica_begins_from_it(tmp_path: Path) -> None:
    initial = make_initial(small_recipe(), tmp_path)
    path = tmp_path / f"{initial.file}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == initial.file
    assert path.stat().st_size == initial.size
    replica = Replica(small_recipe())
    replica.load(path)
    assert (replica.step, replica.index, replica.digest()) == (0, 0, initial.state_digest)
    assert initial.elements == initial.parameters == replica.layout.elements


def test_it_is_the_same_each_time(tmp_path: Path) -> None:
    one, other = (make_initial(small_recipe(), tmp_path / name) for name in ("one", "other"))
    assert one == other
    assert one.state_digest == "96d253f1d4c89b04"
    assert [path.name for path in (tmp_path / "one").iterdir()] == [f"{one.file}.safetensors"]
