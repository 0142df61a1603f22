"""Samples come in the same order on every machine and in every version."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.sampling import order_of

RUN = RunId("0123456789abcdef" * 2)
GOLDEN = [4, 11, 0, 2, 9, 3, 5, 6, 1, 10, 8, 7]
GOLDEN_DIGEST = "6f7d2903797b696ea8bba6dfedc4a6aeb564dd9ce1acc6b255f7be92f3d259f6"


def test_golden_order() -> None:
    """If this order changes, ledgers can no longer be replayed."""
    assert order_of(RUN, 0, 0, 12).tolist() == GOLDEN
    digest = hashlib.sha256(order_of(RUN, 3, 7, 100_000).astype("<i8").tobytes()).hexdigest()
    assert digest == GOLDEN_DIGEST


@given(st.integers(0, 500), st.integers(0, 3), st.integers(0, 3))
def test_every_sample_comes_once(samples: int, epoch: int, shard: int) -> None:
    assert sorted(order_of(RUN, epoch, shard, samples).tolist()) == list(range(samples))


def test_runs_epochs_and_shards_have_orders_of_their_own() -> None:
    orders = [
        order_of(RUN, 0, 0, 50),
        order_of(RUN, 1, 0, 50),
        order_of(RUN, 0, 1, 50),
        order_of(RunId("f" * 32), 0, 0, 50),
    ]
    assert len({order.tobytes() for order in orders}) == 4
    assert orders[0].dtype == np.int64
