"""Control links of agents and relays: a session, limits, and forwarding to the run's host."""
