"""The agent that volunteers run, and the protocol it shares with the site."""

__version__ = "0.1.0"
