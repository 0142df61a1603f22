"""Computations on rounds: bytes against the plan's, affected rounds against others, growth of memory."""
