"""The arithmetic of a round on arrays: codecs, reducer, contributor and update log.

Nothing here needs torch, so a relay can run all of it. `network` moves the bytes, `protocol` decides who takes part in
a round, and `training` computes the gradients.
"""
