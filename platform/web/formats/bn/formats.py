"""Figures in groups of three, as charts, scripts and the terminal write them: Django's own Bengali has no groups."""

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
