"""One piece of memory for all payloads: each chunk has its own part of the right size."""

from typing import get_args

import numpy as np
import pytest

from peer_agent.averaging.payloads import Payloads
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Codec

GRID = Grid(5000, 1024)


@pytest.mark.parametrize("codec", get_args(Codec))
def test_every_chunk_has_room_of_its_own(codec: Codec) -> None:
    payloads = Payloads(codec, GRID, 1, 5)
    for chunk in range(1, 5):
        payloads.rows(chunk, 1)[:] = chunk + 1
    for chunk in range(1, 5):
        row = payloads.rows(chunk, 1)
        assert row.shape == (1, encoded_size(codec, GRID.length(chunk)))
        assert (row == chunk + 1).all()
    assert np.array_equal(payloads.rows(1, 3)[:, 0], [2, 3, 4])
