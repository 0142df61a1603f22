"""`manage.py demo`: acts over HTTP as people would, with real processes. Imports no models."""
