"""`manage.py demo`: starts real processes and uses the site over HTTP, as people do. This package imports no models."""
