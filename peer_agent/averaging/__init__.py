"""Array arithmetic for a round: codecs, reducer, contributor and update log. Needs no torch, so relays can run it."""
