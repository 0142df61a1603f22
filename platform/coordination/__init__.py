"""Everything around the coordinator, which makes a run's decisions: sockets, database writes and messages."""
