"""Pages about the site: front page, help, installation of the agent, health."""
