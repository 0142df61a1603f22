"""Hosts of the pure coordinator: sockets, persistence, dispatch. Decides nothing itself."""
