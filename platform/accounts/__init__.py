"""Who someone is, and which machines speak for them. Knows nothing of runs beyond the id in a credential."""
