"""Worlds of runs with unusual recipes."""
