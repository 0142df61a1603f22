"""Figures in groups of three, as in charts, scripts and the terminal. Django's own Bengali format has no groups."""

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
