"""Control links of agents and relays at the site: a session, a budget, and a post box to the host of the run."""
