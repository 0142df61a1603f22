"""The protocol as pure state machines and messages, without sockets, clocks or randomness."""
