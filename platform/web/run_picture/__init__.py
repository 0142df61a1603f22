"""The present look of a run, as plain values: sentence, curve, bars, people."""
