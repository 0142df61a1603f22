"""Arrays in, arrays out: what is encoded, summed, averaged and kept of a round.

A relay runs all of it without torch. Not responsible for moving bytes (`network`), for deciding who is in a
round (`protocol`) or for what a gradient means (`training`).
"""
