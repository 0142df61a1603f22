"""Bengali number format with digits in groups of three, as charts, scripts and the terminal use.

Django's own Bengali format has no groups.
"""

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
