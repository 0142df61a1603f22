"""A chunk's deadline depends on the plan and on the other slots. A peer that keeps up is never left out."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import (
    BATCH_BYTES,
    LEAST_S,
    LEAST_SIGMA,
    MOST_SIGMA,
    PACED_S,
    batch_chunks,
    coming_s,
    due_s,
    round_latenesses,
    sigma_of,
    unknown_lateness,
    waiting_s,
)
from tests.protocol.relay.stage import plan_of

PLAN = plan_of(duration_s=100.0, sigma=0.1).plan
SECONDS = st.floats(0, 1000)
SIGMAS = st.floats(LEAST_SIGMA, MOST_SIGMA)
LATE = st.lists(st.floats(0, MOST_SIGMA), max_size=60)


# Sigma


@pytest.mark.parametrize(
    ("late", "sigma"),
    [
        ([], 0.5),  # nothing is known yet
        ([0.0] * 9, 0.15),
        ([0.0] * 8 + [0.5], 0.15),  # one bad round
        ([0.1, 0.1, 0.1], 0.15),
        ([0.2, 0.22, 0.24], 0.22 + 4 * 0.02),
        ([0.24, 0.2, 0.22], 0.22 + 4 * 0.02),
        ([0.0, 0.5, 0.0, 0.5], 0.5),
    ],
)
def test_sigma_is_usual_lateness_plus_four_times_its_variation(late: list[float], sigma: float) -> None:
    assert sigma_of(late, 10.0) == pytest.approx(sigma)


@pytest.mark.parametrize("duration_s", [0.0, PACED_S - 0.1, -1.0])
def test_a_plan_without_a_time_or_a_short_one_gives_no_deadlines(duration_s: float) -> None:
    assert sigma_of([0.1], duration_s) == 0.0
    assert sigma_of([], duration_s) == 0.0


@given(LATE, st.floats(PACED_S, 1e6))
def test_sigma_is_bounded_and_independent_of_order(late: list[float], duration_s: float) -> None:
    sigma = sigma_of(late, duration_s)
    assert LEAST_SIGMA <= sigma <= MOST_SIGMA
    assert sigma_of(late[::-1], duration_s) == sigma


def test_where_half_were_dropped_sigma_does_not_shrink() -> None:
    """Each dropped slot counts as one sigma late. If it did not, sigma would fall to its minimum."""
    assert sigma_of([0.0] * 4 + [0.3] * 6, 10.0) == 0.3
    assert sigma_of([0.0] * 5 + [0.1] * 5, 10.0) == pytest.approx(0.25)


def of(*latenesses: float) -> dict[PeerId, float]:
    """Return how late each machine was in one round, in the order of the arguments."""
    return {PeerId(f"{number:032x}"): late for number, late in enumerate(latenesses)}


def test_whoever_is_always_late_lets_nobody_wait() -> None:
    assert round_latenesses([of(0.0, 0.1, 0.5), of(0.05, 0.0, 0.4), of(0.0, 0.0, 0.5)]) == [0.1, 0.05, 0.0]
    assert round_latenesses([of(0.5, 0.3, 0.2, *[0.0] * 17)]) == [0.2], "two of twenty"
    assert round_latenesses([of(0.5, 0.3, 0.2, *[0.0] * 16)]) == [0.3], "one of nineteen"
    assert round_latenesses([of(0.0, 0.3, 0.9), of(0.1, 0.3, 0.0), of(0.0, 0.3, 0.0)]) == [0.9, 0.1, 0.0], (
        "not once late"
    )
    assert round_latenesses([of(0.2), {}]) == [0.2, 0.0], "a machine that is alone counts"


def test_whoever_happens_to_be_the_last_is_waited_for() -> None:
    """In each round, a different one of eight equal machines is late. Only the machine that is always late is
    ignored."""
    rounds = [of(*(0.2 if number == late else 0.0 for number in range(8)), 0.3) for late in range(8)]
    assert round_latenesses(rounds) == [0.2] * 8
    assert sigma_of(round_latenesses(rounds), 10.0) == pytest.approx(0.2)


def test_who_was_waited_for_in_vain_counts_as_somewhat_later() -> None:
    assert [unknown_lateness(sigma) for sigma in (0.05, 0.1, 0.2, 0.24, 0.5)] == pytest.approx(
        [0.0625, 0.125, 0.25, 0.25, 0.5]
    )


# Deadlines


def due(plan: m.Plan, place: int, count: int, enough_s: float) -> float:
    return float(due_s(plan, np.array([place]), count, np.array([enough_s]))[0])


def test_chunks_are_due_in_turn_sigma_after_their_planned_time() -> None:
    assert [due(PLAN, place, 4, 1.0) for place in range(4)] == [35.0, 60.0, 85.0, 110.0]


def test_deadline_moves_with_the_others_when_they_are_late() -> None:
    assert due(PLAN, 0, 4, 90.0) == 100.0
    assert due(PLAN, 3, 4, 1000.0) == 1100.0, "and where the plan was wrong, sigma is a part of what it took"
    assert due(PLAN, 0, 4, inf) == inf, "nothing closes without a quorum"


def test_in_short_rounds_machines_may_pause_for_a_moment() -> None:
    short = replace(PLAN, duration_s=PACED_S, sigma=LEAST_SIGMA)
    assert due(short, 3, 4, 0.0) == PACED_S + LEAST_S
    assert waiting_s(short) == LEAST_S
    assert waiting_s(PLAN) == 10.0


def test_what_an_earlier_attempt_holds_does_not_come_again() -> None:
    first, second = PLAN.spans
    held = replace(PLAN, spans=(replace(first, root=b"r" * 32), second))
    assert (coming_s(PLAN), coming_s(held)) == (100.0, 50.0)
    assert due(held, 1, 2, 0.0) == 60.0


@given(st.integers(1, 50), SIGMAS, st.floats(PACED_S, 1000), st.lists(SECONDS, min_size=50, max_size=50))
def test_nobody_within_sigma_of_plan_or_quorum_is_late(
    count: int, sigma: float, duration_s: float, enough: list[float]
) -> None:
    plan = replace(PLAN, duration_s=duration_s, sigma=sigma)
    enough_s = np.array(sorted(enough)[:count])
    places = np.arange(count)
    deadlines = due_s(plan, places, count, enough_s)
    planned_s = duration_s * (places + 1) / count
    assert (deadlines >= planned_s + sigma * duration_s).all()
    assert (deadlines >= enough_s + max(LEAST_S, sigma * duration_s)).all()
    assert (np.diff(deadlines) >= 0).all()


@given(SIGMAS, SIGMAS, SECONDS, SECONDS)
def test_who_waits_for_more_waits_no_shorter(one: float, other: float, enough: float, later: float) -> None:
    less, more = (replace(PLAN, sigma=sigma) for sigma in sorted((one, other)))
    assert due(less, 1, 4, min(enough, later)) <= due(more, 1, 4, max(enough, later))


# Batches


def test_as_many_chunks_go_out_at_once_as_fit_and_at_least_one() -> None:
    assert batch_chunks({"fp32"}, BATCH_BYTES // 8) == 2
    assert batch_chunks({"fp32", "fp16"}, BATCH_BYTES // 8) == 3, "those of whom most fit: two bytes and an exponent"
    assert batch_chunks({"fp32"}, BATCH_BYTES) == 1
    assert batch_chunks(set(), BATCH_BYTES) == 1


def test_a_chunk_is_planned_to_come_when_its_batch_has_come() -> None:
    places = np.arange(6)
    due = due_s(PLAN, places, 6, np.zeros(6), batch=4)
    assert due.tolist() == pytest.approx([100 * 4 / 6 + 10] * 4 + [110.0] * 2)
    assert due_s(PLAN, places, 6, np.zeros(6)).tolist() == pytest.approx([100 * n / 6 + 10 for n in range(1, 7)])
