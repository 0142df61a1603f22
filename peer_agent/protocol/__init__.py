"""The protocol as pure state machines and messages, without sockets, clocks or randomness.

Site, agent, relay, simulator and tests share it. `averaging` computes the averages, `network` moves the bytes and
`coordination` stores the results.
"""
