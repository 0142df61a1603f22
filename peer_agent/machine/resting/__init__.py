"""Whether a machine may work now: what its owner set, against what goes on at it."""
