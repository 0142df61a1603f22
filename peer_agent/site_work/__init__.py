"""The long work of a site, in child processes: it prepares what was brought, replays logs, evaluates and writes.

Not in the package that volunteers download; `peer_agent.publishing` has what their machines do, too.
"""
