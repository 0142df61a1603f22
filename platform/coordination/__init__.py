"""The processes around the coordinator, which decides about a run: sockets, database writes and messages."""
