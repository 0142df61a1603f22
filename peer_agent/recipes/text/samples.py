"""Samples of a text, and its shards: a sample is `context` tokens of a shard, whose tail is a shorter one
if it has two tokens or more.
"""

HEADER_BYTES = 64 * 1024  # beside the tokens


def samples_in(tokens: int, context: int) -> int:
    """How many samples a shard of that many tokens holds."""
    return tokens // context + (tokens % context >= 2)


def shard_bytes(tokens: int, *, sentences: bool = False) -> int:
    """Of a shard of that many tokens, at most, and of where its sentences begin, of which each has a token at least."""
    return HEADER_BYTES + tokens * (2 + 4 * sentences)
