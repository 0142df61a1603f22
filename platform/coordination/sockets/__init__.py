"""Control links of agents and relays: sessions, limits, and the forwarding of messages to the run's host."""
