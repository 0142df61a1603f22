"""The process around a coordinator: its claim, its events, what it writes. Decides nothing of the run."""
