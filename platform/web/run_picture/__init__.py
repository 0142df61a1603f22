"""What a run looks like now, as plain values: sentence, curve, bars, who is there."""
