"""Output for people and programs: plain lines, a page in the terminal, JSON and figures."""
