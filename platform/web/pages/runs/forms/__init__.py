"""Forms of runs: for organizers, a recipe as fields, and its resource estimate."""
