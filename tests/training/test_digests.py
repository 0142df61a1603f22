"""The digest on a device is the digest of the protocol."""

import numpy as np
import pytest
import torch

from peer_agent.protocol.log import digests as protocol
from peer_agent.training.digests import state_digest


@pytest.mark.parametrize("sizes", [(1,), (5, 7, 3), (protocol.BLOCK + 3, 10)])
def test_equals_the_protocols_digest(sizes: tuple[int, ...]) -> None:
    random = np.random.Generator(np.random.Philox(1))
    vectors = [random.standard_normal(size, dtype=np.float32) for size in sizes]
    assert state_digest(*map(torch.from_numpy, vectors)) == protocol.state_digest(*vectors)


def test_one_bit_anywhere_changes_it() -> None:
    vector = torch.ones(1000)
    before = state_digest(vector)
    vector.view(torch.int32)[999] ^= 1
    assert state_digest(vector) != before


def test_signs_of_zero_differ() -> None:
    assert state_digest(torch.tensor([0.0])) != state_digest(torch.tensor([-0.0]))
