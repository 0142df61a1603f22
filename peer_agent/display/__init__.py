"""Output for people and programs: lines, a terminal page, JSON, figures. Decides nothing."""
