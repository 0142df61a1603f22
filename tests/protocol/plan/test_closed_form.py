"""The least time by bisection, many programs solved at once, and the choice among equally fast plans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.plan.closed_form import Lines, fill, least_time, lines, lines_of
from peer_agent.protocol.plan.program import program_of
from tests.protocol.plan.instances import auxiliary, mixed, trainers

VOLUNTEERS = np.array([True, True, False, False])
NOTHING = np.zeros(4)


def of_seed(seed: int) -> Lines:
    parties, down = mixed(seed)
    return lines_of(program_of(parties, down))


@pytest.mark.parametrize("seed", range(40))
def test_a_little_less_time_is_too_little_and_the_time_is_enough(seed: int) -> None:
    bounds = of_seed(seed)
    time = least_time(bounds)

    def fits(seconds: np.ndarray) -> bool:
        upper, lower = np.clip(bounds.upper(seconds), 0, 1), bounds.lower(seconds)
        return bool(seconds >= bounds.least_s and upper.sum() >= 1 - 1e-12 and (lower <= upper + 1e-12).all())

    assert fits(time * (1 + 1e-12))
    assert not time or not fits(time * (1 - 1e-9))


def test_rule_28_by_its_formula() -> None:
    """All peers send and receive P = 1: a trainer takes (T b - 1) / (n - 2), a relay T min(U, D) / n, and T >= 1 /
    b_min.
    """
    speeds = [0.5, 0.7, 1.1, 1.3]
    parties = [p for i, b in enumerate(speeds) for p in trainers(1, b, i)] + [auxiliary(9, 0.6)]
    bounds = lines_of(program_of(parties, 1.0))
    for time in (2.0, 2.5):
        expected = [*((time * b - 1) / 2 for b in speeds), time * 0.6 / 4]
        assert bounds.upper(time) == pytest.approx(expected)
    assert float(bounds.least_s) == 2.0


def test_many_programs_at_once_are_what_each_is_alone() -> None:
    chance = np.random.default_rng(5)
    base, slope, capacity = (chance.uniform(0, 9, (30, 8)) for _ in range(3))
    slope[chance.random((30, 8)) < 0.2] *= -0.1
    starts = np.array([0, 2, 5])
    for values, dummy in ((base, 0.0), (slope, 0.0), (capacity, np.inf)):
        values[:, starts] = dummy
    together = least_time(lines(starts, base, slope, capacity, np.zeros(30)))
    alone = [float(least_time(lines(starts, *rows, 0.0))) for rows in zip(base, slope, capacity, strict=True)]
    assert together.tolist() == alone, "the same bits"


# --- ties (rule 29)


def test_relays_fill_to_nine_tenths_and_trainers_share_the_rest() -> None:
    assert fill(NOTHING, np.array([0.4, 0.2, 0.5, 0.3]), VOLUNTEERS) == pytest.approx(
        [0.28 * 0.4 / 0.68, 0.28 * 0.2 / 0.68, 0.45 + 0.28 * 0.05 / 0.68, 0.27 + 0.28 * 0.03 / 0.68]
    )


def test_relays_with_room_for_all_share_in_proportion_to_it() -> None:
    assert fill(NOTHING, np.array([9.0, 9.0, 4.0, 1.0]), VOLUNTEERS) == pytest.approx([0, 0, 0.8, 0.2])


def test_who_has_no_bound_goes_first_and_alike() -> None:
    assert fill(NOTHING, np.array([9.0, 9.0, np.inf, 1.0]), VOLUNTEERS).tolist() == [0, 0, 1, 0]
    assert fill(NOTHING, np.full(4, np.inf), VOLUNTEERS).tolist() == [0, 0, 0.5, 0.5]
    assert fill(NOTHING, np.array([np.inf, np.inf, 0.1, 0.1]), VOLUNTEERS) == pytest.approx([0.41, 0.41, 0.09, 0.09])


def test_a_lower_bound_is_kept() -> None:
    assert fill(np.array([0.3, 0, 0, 0]), np.array([0.3, 1, 1, 3]), VOLUNTEERS) == pytest.approx([0.3, 0, 0.175, 0.525])


bounds = st.lists(st.tuples(st.floats(0, 0.2), st.floats(0.3, 5), st.booleans()), min_size=4, max_size=5)


@given(bounds)
def test_shares_sum_to_one_between_their_bounds(found: list[tuple[float, float, bool]]) -> None:
    lower, room, is_volunteer = (np.array(column) for column in zip(*found, strict=True))
    shares = fill(lower, lower + room, is_volunteer.astype(bool))
    assert shares.sum() == pytest.approx(1)
    assert (shares >= lower - 1e-12).all()
    assert (shares <= lower + room + 1e-12).all()
