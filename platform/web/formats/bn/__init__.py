"""Bengali."""
