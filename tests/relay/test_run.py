"""What a relay's run does beside its event loop."""

import threading

import pytest

from peer_agent.averaging.codecs import INLINE_BYTES
from peer_agent.relay.run import _compute


@pytest.mark.parametrize(("size", "is_elsewhere"), [(INLINE_BYTES, False), (INLINE_BYTES + 1, True)])
async def test_much_arithmetic_is_done_in_a_thread(size: int, is_elsewhere: bool) -> None:
    assert INLINE_BYTES <= 256 * 1024
    assert (await _compute(size, threading.get_ident) != threading.get_ident()) == is_elsewhere
