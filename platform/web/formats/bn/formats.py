"""The Bengali number format, with digits in groups of three, as in charts, scripts and the terminal.

Django's own Bengali format does not group digits.
"""

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
