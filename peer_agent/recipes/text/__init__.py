"""Code that the recipes for text share."""
