"""Code that the recipes for images share."""
