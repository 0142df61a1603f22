"""People and the machines that act on their behalf. This package knows of runs only through the ids in credentials."""
