"""The live feed of a run: the picture of its page, the changes to it, and the delivery of both to watchers."""
