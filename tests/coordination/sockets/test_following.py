"""Which host a socket follows, and when its peer is asked for a hello again."""

import pytest

from coordination.sockets.following import LONGEST_S, UNANSWERED_S, Following

RUN = "0a" * 16


@pytest.fixture
def one() -> Following:
    """Follows the first host of a run since second 0."""
    following = Following()
    assert following.follow(RUN, "first", 1, 0.0)
    return following


def test_a_newer_host_is_followed_and_an_older_one_is_not(one: Following) -> None:
    assert one.follow(RUN, "second", 2, 1.0)
    assert not one.follow(RUN, "first", 1, 2.0)
    assert one.hosts == {RUN: "second"}


def test_the_same_host_asks_again_where_it_says_so(one: Following) -> None:
    assert not one.follow(RUN, "first", 1, 1.0)
    assert one.follow(RUN, "first", 1, 1.0, again=True)
    assert not one.follow(RUN, "nobody", 0, 1.0, again=True)


def test_a_look_finds_a_host_whose_announcement_was_lost(one: Following) -> None:
    assert one.look({RUN: ("second", 2)}, 1.0, 1.0) == [RUN]
    assert one.hosts == {RUN: "second"}
    assert one.look({RUN: ("second", 2)}, 2.0, 2.0) == []


def test_a_host_that_could_not_be_reached_is_found_again(one: Following) -> None:
    one.unfollow(RUN)
    assert one.look({RUN: ("first", 1)}, 1.0, 1.0) == [RUN]


def test_a_run_without_a_host_has_none(one: Following) -> None:
    one.look({}, 1.0, 1.0)
    assert one.hosts == {}


def test_a_host_that_announced_itself_during_a_look_is_kept(one: Following) -> None:
    one.look({}, -1.0, 1.0)
    assert one.hosts == {RUN: "first"}


def test_a_hello_that_is_not_answered_is_asked_for_again_and_ever_more_rarely(one: Following) -> None:
    now, waits = 0.0, []
    for _ in range(6):
        one.said_hello(RUN, now)
        begun = now
        while not one.look({RUN: ("first", 1)}, now, now):
            now += 0.5
        waits.append(now - begun - 0.5)
    assert waits[:4] == [UNANSWERED_S, 2 * UNANSWERED_S, 4 * UNANSWERED_S, 8 * UNANSWERED_S]
    assert max(waits) <= LONGEST_S


def test_one_that_is_answered_is_not_asked_for(one: Following) -> None:
    one.said_hello(RUN, 0.0)
    one.answered(RUN)
    assert one.look({RUN: ("first", 1)}, 100.0, 100.0) == []
