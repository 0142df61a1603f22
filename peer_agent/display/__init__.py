"""Output for people and programs: lines, a page in the terminal, JSON, figures."""
