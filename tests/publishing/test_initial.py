"""The first snapshot: the same file wherever it is made."""

import hashlib
from pathlib import Path

from peer_agent.publishing.initial import make_initial
from peer_agent.training.replica import Replica
from tests.training.commits import small_recipe


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
