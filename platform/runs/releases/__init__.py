"""Releases: making, the card and the people it names, publishing to the Hub, and trials."""
