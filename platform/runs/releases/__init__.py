"""Releases: how they are made, their model card and the people on it, publication on the Hub, and trials."""
