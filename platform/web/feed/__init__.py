"""The live feed of a run: its picture, changes to it, and how both reach watchers."""
