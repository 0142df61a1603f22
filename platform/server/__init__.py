"""The processes of `manage.py serve`: site, worker, relay. Stands on top of every other room."""
