"""A replica: views into one vector, changed by records applied in order and by snapshots."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log import digests as protocol
from peer_agent.protocol.log.digests import state_digest
from peer_agent.protocol.log.records import GENESIS
from peer_agent.recipes.causal_lm.training import build_model
from peer_agent.training.model import Layout, layout_of, parameters_of
from peer_agent.training.replica import OutOfOrder, Replica
from peer_agent.training.replica import state_digest as device_digest
from tests.training.commits import Vector, commit, record_after, small_recipe


def some_gradient(replica: Replica, seed: int = 0) -> Vector:
    random = np.random.Generator(np.random.Philox(seed))
    return random.standard_normal(replica.layout.elements, dtype=np.float32)


@pytest.fixture
def replica() -> Replica:
    return Replica(small_recipe())


def test_the_model_looks_into_the_vector(replica: Replica) -> None:
    replica.parameters.fill_(0.25)
    assert all((parameter == 0.25).all() for parameter in replica.model.parameters())
    assert all((tensor == 0.25).all() for tensor in replica.model.state_dict().values())


def test_begins_at_the_beginning(replica: Replica) -> None:
    assert (replica.step, replica.index, replica.log_digest) == (0, 0, GENESIS)
    assert not replica.moment1.any()
    assert not replica.moment2.any()


def test_an_update_moves_everything_on(replica: Replica) -> None:
    before = replica.digest()
    commit(replica, some_gradient(replica))
    assert (replica.step, replica.index) == (1, 1)
    assert replica.log_digest != GENESIS
    assert replica.digest() != before


def test_keeps_the_parameters_of_the_step_before_if_asked(replica: Replica, tmp_path: Path) -> None:
    commit(replica, some_gradient(replica))
    assert replica.before is None
    replica.keeps_before = True
    assert replica.before is None, "the step before is already gone"
    parameters = replica.parameters.clone()
    commit(replica, some_gradient(replica))
    assert replica.before is not None
    assert replica.before.step == 1
    assert torch.equal(replica.before.parameters, parameters)
    replica.save(tmp_path / "state")
    replica.load(tmp_path / "state")
    assert replica.before is None


def test_its_digest_is_the_protocols(replica: Replica) -> None:
    commit(replica, some_gradient(replica))
    state = replica.copy_state()
    assert replica.digest() == state_digest(state.parameters, state.moment1, state.moment2)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 2},
        {"step": 0},
        {"index": 2},
        {"previous": "f" * 64},
        {"kind": "rollback"},
    ],
)
def test_a_record_out_of_order_changes_nothing(replica: Replica, change: dict[str, object]) -> None:
    before = replica.digest()
    gradient = some_gradient(replica)
    record = msgspec.structs.replace(record_after(replica, gradient), **change)
    with pytest.raises(OutOfOrder):
        replica.apply(record, "0" * 64, gradient)
    assert (replica.step, replica.digest()) == (0, before)


def test_a_gradient_of_another_size_is_refused(replica: Replica) -> None:
    gradient = some_gradient(replica)
    with pytest.raises(ValueError, match="parameters"):
        replica.apply(record_after(replica, gradient), "0" * 64, gradient[:-1])


def test_a_copy_stands_still(replica: Replica) -> None:
    copy = replica.copy_state()
    kept = copy.parameters.copy()
    commit(replica, some_gradient(replica))
    assert np.array_equal(copy.parameters, kept)
    assert copy.step == 0


def test_snapshot_and_log_equal_the_whole_log(replica: Replica, tmp_path: Path) -> None:
    """A replica that loads a snapshot and replays the rest of the log has the same bits as one that replays the whole
    log.
    """
    commit(replica, some_gradient(replica, 1))
    replica.save(tmp_path / "snapshot.safetensors")
    late = Replica(small_recipe())
    late.load(tmp_path / "snapshot.safetensors")
    gradient = some_gradient(replica, 2)
    record = record_after(replica, gradient)
    for peer in (replica, late):
        peer.apply(record, "d" * 64, gradient)
    assert (late.step, late.index, late.log_digest) == (2, 2, "d" * 64)
    assert late.digest() == replica.digest()


def test_the_model_follows_a_loaded_snapshot(replica: Replica, tmp_path: Path) -> None:
    commit(replica, some_gradient(replica))
    replica.save(tmp_path / "snapshot.safetensors")
    late = Replica(small_recipe())
    late.load(tmp_path / "snapshot.safetensors")
    ids = torch.arange(10)[None]
    assert torch.equal(late.model(input_ids=ids).logits, replica.model(input_ids=ids).logits)


def test_another_models_snapshot_is_refused(replica: Replica, tmp_path: Path) -> None:
    Replica(small_recipe("llama")).save(tmp_path / "snapshot.safetensors")
    before = replica.digest()
    with pytest.raises(Problem, match="E310"):
        replica.load(tmp_path / "snapshot.safetensors")
    assert replica.digest() == before


def test_the_hash_is_of_the_file_that_any_replica_writes(replica: Replica, tmp_path: Path) -> None:
    """The reported `StateHash` equals that of the uploaded file, across threads and copies and after a reload."""
    commit(replica, some_gradient(replica))
    told = replica.state_hash()
    assert replica.copy_state().hashed() == told
    assert (replica.save(tmp_path / "state"), (tmp_path / "state").stat().st_size) == told
    loaded = Replica(small_recipe())
    loaded.load(tmp_path / "state")
    assert loaded.state_hash() == told
    other, before = Replica(small_recipe()), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        commit(other, some_gradient(other))
        assert other.state_hash() == told
    finally:
        torch.set_num_threads(before)
    commit(replica, some_gradient(replica, seed=1))
    assert replica.state_hash() != told


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_the_hash_does_not_depend_on_how_much_is_read_at_a_time(
    replica: Replica, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.layout, replica.parameters = Layout((), 5), torch.arange(5.0)
    replica.moment1 = replica.moment2 = torch.zeros(5)
    monkeypatch.setattr("peer_agent.training.replica.BLOCK", block)
    assert replica.state_hash() == replica.copy_state().hashed()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_the_layout_tiles_the_vector(family: str) -> None:
    model = build_model(small_recipe(family))
    layout = layout_of(model)
    position = 0
    for piece, parameter in parameters_of(model, layout):
        assert (piece.start, piece.shape) == (position, tuple(parameter.shape))
        position = piece.stop
    assert position == layout.elements == sum(p.numel() for p in model.parameters())


def test_tied_embeddings_are_there_once() -> None:
    names = [piece.name for piece in layout_of(build_model(small_recipe("gpt2"))).pieces]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


@pytest.mark.parametrize("sizes", [(1,), (5, 7, 3), (protocol.BLOCK + 3, 10)])
def test_equals_the_protocols_digest(sizes: tuple[int, ...]) -> None:
    random = np.random.Generator(np.random.Philox(1))
    vectors = [random.standard_normal(size, dtype=np.float32) for size in sizes]
    assert device_digest(*map(torch.from_numpy, vectors)) == protocol.state_digest(*vectors)


def test_one_bit_anywhere_changes_it() -> None:
    vector = torch.ones(1000)
    before = device_digest(vector)
    vector.view(torch.int32)[999] ^= 1
    assert device_digest(vector) != before


def test_signs_of_zero_differ() -> None:
    assert device_digest(torch.tensor([0.0])) != device_digest(torch.tensor([-0.0]))
