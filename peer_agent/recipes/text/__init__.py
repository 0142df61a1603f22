"""What recipes that learn from text have in common."""
