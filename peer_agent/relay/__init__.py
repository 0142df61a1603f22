"""A relay's process: the shell of `protocol.relay`, for all runs of its site. No torch."""
