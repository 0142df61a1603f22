"""Code shared by the text recipes."""
