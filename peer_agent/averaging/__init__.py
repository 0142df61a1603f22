"""Array arithmetic for a round: codecs, reducer, contributor and update log. Does not need torch, so relays can run
it.
"""
