"""Array arithmetic for a round: codecs, reducer, contributor and update log.

This package does not need torch, so relays can run it.
"""
