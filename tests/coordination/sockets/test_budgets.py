"""How much a machine may say."""

from coordination.sockets import budgets
from coordination.sockets.budgets import BUDGETS, Allowance, Allowances, Budget
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.messages import MAX_MESSAGE

SMALL = Budget(messages_per_s=2, messages=4, bytes_per_s=10, bytes=100)


def test_so_many_at_once_and_then_as_many_as_are_granted() -> None:
    allowance = Allowance(SMALL, 0.0)
    assert [allowance.spend(0, 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert allowance.spend(0, 1.0)
    assert not allowance.spend(0, 1.0)


def test_bytes_count_as_messages_do() -> None:
    allowance = Allowance(SMALL, 0.0)
    assert allowance.spend(100, 0.0)
    assert not allowance.spend(1, 0.0)
    assert allowance.spend(5, 1.0)


def test_rest_saves_up_no_more_than_the_most() -> None:
    allowance = Allowance(SMALL, 0.0)
    assert sum(allowance.spend(0, 1e6) for _ in range(10)) == 4


def test_an_honest_machine_is_far_below_it() -> None:
    for budget in BUDGETS.values():
        assert budget.bytes >= 4 * MAX_MESSAGE, "hellos after a network that failed again and again"
    allowance = Allowance(BUDGETS[Role.TRAINER], 0.0)
    assert all(allowance.spend(10_000, second / 50) for second in range(3600 * 50)), "fifty reports a second"


def test_a_new_socket_is_no_new_budget() -> None:
    known = Allowances()
    first = known.of("a", "run", Role.TRAINER, 0.0)
    assert known.of("a", "run", Role.TRAINER, 1.0) is first
    assert known.of("a", "other", Role.TRAINER, 1.0) is not first


def test_machines_are_forgotten_the_oldest_first() -> None:
    known = Allowances()
    first = known.of("0", "run", Role.TRAINER, 0.0)
    for number in range(1, budgets.MOST + 1):
        known.of(str(number), "run", Role.TRAINER, 0.0)
    assert known.of("0", "run", Role.TRAINER, 0.0) is not first


def test_who_is_heard_is_not_among_the_oldest() -> None:
    known = Allowances()
    first = known.of("0", "run", Role.TRAINER, 0.0)
    for number in range(1, budgets.MOST + 1):
        known.of(str(number), "run", Role.TRAINER, 0.0)
        assert known.of("0", "run", Role.TRAINER, 0.0) is first


def test_an_auxiliary_has_a_budget_of_its_own() -> None:
    """It says a word for each span and slot, of one run: more than a trainer, less than a relay."""
    trainer, auxiliary, relay = (BUDGETS[role] for role in (Role.TRAINER, Role.AUXILIARY, Role.RELAY))
    assert trainer.messages < auxiliary.messages < relay.messages
    assert Allowances().of("a", "run", Role.AUXILIARY, 0.0).budget is auxiliary
