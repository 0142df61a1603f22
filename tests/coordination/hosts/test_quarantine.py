"""Quarantine of peers that crash a host: it lasts longer each time, and all processes share it."""

import time
from typing import Any

import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError as RedisIsAway

from coordination.channel_layer.cache import SafeRedisCache
from coordination.hosts import quarantine
from coordination.hosts.quarantine import REST_S, Quarantine
from peer_agent.protocol.identifiers import PeerId

TEO, NOOR = PeerId("0a" * 16), PeerId("0b" * 16)
HERE, THERE = 5_000.0, 70_000.0  # the monotonic clocks of two processes at the same moment


@pytest.fixture(autouse=True)
def empty() -> None:
    cache.clear()


def broke(peer: PeerId, now: float, before: Quarantine | None = None) -> Quarantine:
    known = before or Quarantine()
    known.add(peer, now)
    known.share(peer, now)
    return known


def test_who_broke_a_host_rests_for_one_four_and_sixteen_minutes() -> None:
    known, now, rests = Quarantine(), 0.0, []
    for _ in range(4):
        rests.append(known.add(TEO, now))
        assert known.left_s(TEO, now) == rests[-1]
        now += rests[-1]
        assert known.left_s(TEO, now) == 0
    assert rests == [60, 240, 960, 960]
    assert known.left_s(NOOR, 0.0) == 0


def test_it_is_forgotten_after_a_while() -> None:
    known = Quarantine()
    known.add(TEO, 0.0)
    assert known.add(TEO, 60 + quarantine.FORGET_S) == 60


def test_so_many_are_remembered() -> None:
    known = Quarantine()
    for number in range(quarantine.MOST + 1):
        known.add(PeerId(f"{number:032x}"), 0.0)
    assert known.left_s(PeerId(f"{0:032x}"), 0.0) == 0
    assert known.left_s(PeerId(f"{1:032x}"), 0.0) == 60


def test_new_fault_prolongs_an_entry_and_a_query_does_not() -> None:
    known = Quarantine()
    known.add(TEO, 0.0)
    known.add(NOOR, 0.0)
    known.add(TEO, 0.0)
    for number in range(quarantine.MOST - 1):
        known.left_s(NOOR, 0.0)
        known.add(PeerId(f"{number:032x}"), 0.0)
    assert known.left_s(NOOR, 0.0) == 0
    assert known.left_s(TEO, 0.0) > 0


def test_another_process_learns_of_it() -> None:
    broke(TEO, HERE)
    other = Quarantine()
    assert other.left_s(TEO, THERE) == 0
    other.learn(THERE)
    assert other.left_s(TEO, THERE) == pytest.approx(REST_S[0], abs=5)
    assert other.left_s(NOOR, THERE) == 0
    assert other.add(TEO, THERE + 100) == REST_S[1], "the second time is the second time there too"


def test_another_process_learns_of_it_over_redis(settings: Any, redis_url: str) -> None:
    backend = f"{SafeRedisCache.__module__}.{SafeRedisCache.__name__}"
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": redis_url, "KEY_PREFIX": "test_quarantine"}}
    cache.clear()
    broke(TEO, HERE)
    other = Quarantine()
    other.learn(THERE)
    assert other.add(TEO, THERE) == REST_S[1]
    cache.close()


def test_what_it_knows_itself_counts_where_that_is_longer() -> None:
    broke(TEO, HERE)
    mine = Quarantine()
    for _ in range(2):
        mine.add(TEO, THERE)
    mine.learn(THERE)
    assert mine.left_s(TEO, THERE) == REST_S[1]


def test_what_is_over_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    broke(TEO, HERE)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + REST_S[0] + 1)
    other = Quarantine()
    other.learn(THERE)
    assert other.left_s(TEO, THERE) == 0


def test_what_is_shared_is_bounded_and_the_newest_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "SHARED", 3)
    for number in range(6):
        broke(PeerId(f"{number:032x}"), HERE)
    other = Quarantine()
    other.learn(THERE)
    assert [other.left_s(PeerId(f"{number:032x}"), THERE) > 0 for number in range(6)] == [False] * 3 + [True] * 3


def test_without_redis_each_process_knows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise RedisIsAway("refused")

    for name in ("get", "set"):
        monkeypatch.setattr(cache, name, away)
    mine = broke(TEO, HERE)
    mine.learn(HERE)
    assert mine.left_s(TEO, HERE) == REST_S[0]
