"""The live feed of a run: the picture of its page, the changes to it, and how both reach watchers."""
