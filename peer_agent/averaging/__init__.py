"""The arithmetic of a round on arrays: codecs, reducer, contributor and update log. Needs no torch, so relays can run
it.
"""
