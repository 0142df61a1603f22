"""The protocol as pure state machines and messages, without sockets, clocks or randomness.

Shared by site, agent, relay, simulator and tests. `averaging` computes, `network` moves bytes, `coordination` stores.
"""
