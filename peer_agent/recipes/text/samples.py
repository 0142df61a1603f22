"""Samples of a text, and its shards: a sample is `context` tokens of a shard, whose tail is a shorter one
if it has two tokens or more.
"""

HEADER_BYTES = 64 * 1024  # beside the tokens


def samples_in(tokens: int, context: int) -> int:
    """How many samples a shard of that many tokens holds."""
    return tokens // context + (tokens % context >= 2)


def shard_bytes(tokens: int) -> int:
    """Of a shard of that many tokens, at most."""
    return 2 * tokens + HEADER_BYTES


def sentence_shard_bytes(tokens: int) -> int:
    """The same where it also says where sentences begin, of which each has a token at least."""
    return shard_bytes(tokens) + 4 * tokens
