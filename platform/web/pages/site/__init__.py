"""Pages about the site: help, how to install the agent, whether it is up."""
