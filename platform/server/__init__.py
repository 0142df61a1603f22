"""The processes of `manage.py serve`: site, worker, relay. On top of every other package."""
