"""`manage.py demo`: goes over HTTP as people would, with real processes. Imports no models."""
