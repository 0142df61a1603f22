"""The processes of `manage.py serve`: site, worker and relay. This package may import any other except `demo`."""
