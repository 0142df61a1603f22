"""The agent run by volunteers, and the protocol that it shares with the site."""

__version__ = "0.1.0"
