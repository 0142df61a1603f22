"""People, and the machines that act for them. Knows nothing of runs beyond the id in a credential."""
