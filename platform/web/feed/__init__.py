"""A run's live feed: the content of its page, changes to it, and their delivery to watchers."""
