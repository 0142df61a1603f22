"""A relay's process, and an auxiliary's: the shell of `protocol.relay`, for all runs of a site or for one. No torch."""
