"""Faults in the code that all parts of the protocol share: Merkle roots, and the paths to them."""

from tests.mutations.mutation import Mutation

PROTOCOL: tuple[Mutation, ...] = (
    Mutation(
        "a path proves any place",
        "peer_agent/protocol/log/merkle.py",
        "    return not left and node == root",
        "    return node == root",
        ("tests/protocol/log/test_merkle.py",),
    ),
    Mutation(
        "contributions need no root",
        "peer_agent/protocol/log/records.py",
        "    if len(parts) != head.contributors or contributions_tree(parts)[-1][0].hex() != head.contributions_root:",
        "    if len(parts) != head.contributors:",
        ("tests/protocol/log/test_records.py", "tests/protocol/test_sealed.py"),
    ),
    Mutation(
        "a slot needs no path",
        "peer_agent/protocol/sealed.py",
        "    if not is_under(head.slots_root, entry, planned.number, head.contributors, planned.path):",
        "    if planned.number >= head.contributors:",
        ("tests/protocol/test_sealed.py",),
    ),
    Mutation(
        "a contribution needs no path",
        "peer_agent/protocol/sealed.py",
        "    elif own is not None and not (own.peer == peer and is_in(head, own, commit.position, commit.path)):",
        "    elif own is not None and own.peer != peer:",
        ("tests/protocol/test_sealed.py",),
    ),
)
