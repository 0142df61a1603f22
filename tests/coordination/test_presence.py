"""What pages show of who is in a run."""

import pytest

from coordination import presence, store
from peer_agent.protocol.coordinator.state import Member
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from tests.coordination.example_run import example_run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("role", "step", "of", "words"),
    [
        (Role.TRAINER, -1, 0, "syncing"),  # it has no replica yet
        (Role.TRAINER, 0, 0, "ready"),
        (Role.TRAINER, 11, 12, "ready"),  # the commit of a moment ago is being applied
        (Role.TRAINER, 10, 12, "syncing"),
        (Role.RELAY, -1, 12, "ready"),
        (Role.AUXILIARY, -1, 12, "ready"),
    ],
)
def test_only_who_is_more_than_one_step_behind_catches_up(role: Role, step: int, of: int, words: str) -> None:
    state = store.load(example_run().run, 1)
    state.step = of
    peer = PeerId("a" * 32)
    state.members = {peer: Member(peer, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0, step=step)}
    _, (seen,) = presence.picture_of(state)
    assert seen["state"] == words


def test_trainers_come_first_then_auxiliaries_then_relays() -> None:
    state = store.load(example_run().run, 1)
    roles = (Role.RELAY, Role.AUXILIARY, Role.TRAINER)
    for number, role in enumerate(roles):
        peer = PeerId(f"{number:032x}")
        state.members[peer] = Member(peer, "Teo", "laptop", role, AccumulatorId("b" * 32), 0.0)
    _, seen = presence.picture_of(state)
    assert [member["role"] for member in seen] == ["trainer", "auxiliary", "relay"]
