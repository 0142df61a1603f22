"""Helpers for HTTP: requesters, rate limits, files, errors."""
