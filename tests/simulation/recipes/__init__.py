"""Simulated worlds of runs with unusual recipes."""
