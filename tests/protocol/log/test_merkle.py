"""The Merkle root by which a peer commits to a vector."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.log.merkle import (
    Leaf,
    is_under,
    leaf_of,
    pack_leaves,
    path_of,
    root_of,
    tree_of,
    unpack_leaves,
)

GOLDEN = "b6acc31272bf73e7ae54a0fcbb30e51e268b6ae32a0a574feba0e63affe44524"

leaves = st.builds(Leaf, st.binary(min_size=32, max_size=32), st.floats(allow_nan=False))


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def test_golden_roots() -> None:
    made = [leaf_of(bytes([i]), float(i)) for i in range(5)]
    own = [hashlib.sha256(b"\0" + leaf.pack()).digest() for leaf in made]
    assert root_of([]) == hashlib.sha256(b"").digest()
    assert root_of(made[:1]) == own[0]
    assert root_of(made[:2]) == node(own[0], own[1])
    assert root_of(made[:3]) == node(node(own[0], own[1]), own[2])
    assert root_of(made) == node(node(node(own[0], own[1]), node(own[2], own[3])), own[4])
    assert root_of(made).hex() == GOLDEN


@given(st.lists(leaves, max_size=40))
def test_leaves_travel_unchanged(made: list[Leaf]) -> None:
    assert unpack_leaves(pack_leaves(made)) == made


@given(st.lists(leaves, min_size=1, max_size=20), st.data())
def test_any_change_changes_the_root(made: list[Leaf], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(made) - 1))
    root = root_of(made)
    digest = bytes([made[at].digest[0] ^ 1]) + made[at].digest[1:]
    assert root_of([*made[:at], Leaf(digest, made[at].sum_squares), *made[at + 1 :]]) != root
    assert root_of([*made, made[at]]) != root
    assert root_of(made[:-1]) != root


def test_a_node_is_never_taken_for_a_leaf() -> None:
    a, b = leaf_of(b"a", 1.0), leaf_of(b"b", 2.0)
    inner = root_of([a, b])
    assert root_of([Leaf(inner, 0.0)]) != inner


def test_the_sum_of_squares_is_part_of_the_commitment() -> None:
    assert root_of([leaf_of(b"a", 1.0)]) != root_of([leaf_of(b"a", 1.0000000000000002)])


def test_half_a_leaf_is_refused() -> None:
    with pytest.raises(ValueError, match="40 bytes"):
        unpack_leaves(bytes(41))


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=40), st.data())
def test_a_path_proves_its_own_entry_at_its_own_place_alone(entries: list[bytes], data: st.DataObject) -> None:
    tree = tree_of(entries)
    root, position = tree[-1][0], data.draw(st.integers(0, len(entries) - 1))
    path = path_of(tree, position)
    assert is_under(root, entries[position], position, len(entries), path)
    assert not is_under(root, entries[position] + b"x", position, len(entries), path)
    assert not is_under(root, entries[position], position, len(entries), (*path, bytes(32)))
    assert not is_under(root, entries[position], len(entries), len(entries), path)
    other = data.draw(st.integers(0, len(entries) - 1))
    if entries[other] != entries[position]:
        assert not is_under(root, entries[position], other, len(entries), path_of(tree, other))
    if path:
        assert not is_under(root, entries[position], position, len(entries), path[:-1])
