"""The process of a relay, which serves all runs of a site, or of an auxiliary, which serves one run. Needs no torch.

It passes events to the state machine in `protocol.relay` and carries out its actions.
"""
