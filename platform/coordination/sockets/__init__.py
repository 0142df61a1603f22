"""Control links of agents and relays: sessions, limits, and forwarding of messages to the run's host."""
