"""The pure heart: what is said, what is decided, and nothing that touches a socket, a clock or chance.

Shared by the site (which hosts the coordinator), the agent, the relay, the simulator and the tests. Not responsible
for arithmetic on gradients (`averaging`), for moving bytes (`network`) or for storing anything (`coordination`).
"""
