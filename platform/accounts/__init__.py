"""People and the machines that act on their behalf. This package refers to runs only by their ids."""
