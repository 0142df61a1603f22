"""Samples of a text."""

import pytest

from peer_agent.recipes.text.samples import samples_in, shard_bytes


@pytest.mark.parametrize(
    ("tokens", "samples"), [(0, 0), (1, 0), (2, 1), (64, 1), (65, 1), (66, 2), (128, 2), (1000, 16)]
)
def test_a_tail_needs_two_tokens(tokens: int, samples: int) -> None:
    assert samples_in(tokens, 64) == samples


def test_a_shard_has_two_bytes_a_token_and_a_header() -> None:
    assert shard_bytes(1000) == 2000 + 64 * 1024
    assert shard_bytes(1000, sentences=True) == 6000 + 64 * 1024
