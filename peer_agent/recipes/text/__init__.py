"""Shared parts of recipes that learn from text."""
