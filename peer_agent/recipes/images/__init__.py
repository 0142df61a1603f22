"""Code shared by the image recipes."""
