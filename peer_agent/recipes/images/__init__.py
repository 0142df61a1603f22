"""What recipes that learn from images have in common."""
