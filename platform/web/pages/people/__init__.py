"""Pages about people and teams: their contributions, and certificates."""
