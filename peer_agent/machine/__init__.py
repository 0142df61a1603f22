"""This machine: its hardware, its owner's limits, and its folder. Independent of any run."""
