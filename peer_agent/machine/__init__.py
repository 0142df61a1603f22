"""This machine: its hardware, its owner's limits, and the agent's folder."""
