"""The protocol as pure state machines and messages, with no sockets, clocks or randomness."""
