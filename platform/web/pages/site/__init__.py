"""Pages about the site: front page, help, installing the agent, health."""
