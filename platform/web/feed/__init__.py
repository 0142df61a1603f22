"""The live feed of a run: the content of its page, changes in this content, and their delivery to watchers."""
