"""The process around a coordinator: its claim, its events and its writes. Decides nothing about the run."""
