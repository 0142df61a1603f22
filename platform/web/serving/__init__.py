"""The whole platform in one process and one relay beside it: what `manage.py serve` is made of."""
