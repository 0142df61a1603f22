"""What peers' links can carry, learned from bytes that arrived; nobody is asked for it."""
