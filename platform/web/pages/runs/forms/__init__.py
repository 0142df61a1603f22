"""Forms of runs: what organizers fill in, a recipe as fields, and what it takes."""
