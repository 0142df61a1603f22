"""The processes of `manage.py serve`: site, worker and relay. This package builds on all the others."""
