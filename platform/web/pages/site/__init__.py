"""Pages about the site: help, installing the agent, health."""
