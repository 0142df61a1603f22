"""`manage.py demo`: real processes, driven over HTTP as people would. This package imports no models."""
