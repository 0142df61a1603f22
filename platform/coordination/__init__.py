"""The sockets, database writes and messages around the coordinator. The coordinator makes all decisions about a run."""
