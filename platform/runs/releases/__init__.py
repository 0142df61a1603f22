"""Releases: how they are made, model cards and the people on them, publication on the Hub, and trials."""
