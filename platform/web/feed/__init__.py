"""The live feed of a run: its picture, what changed in it, and how both reach everybody who watches."""
