"""The long work of a site, in child processes: prepare data, replay logs, evaluate, and generate text.

Volunteers do not download this package. `peer_agent.publishing` has what their machines do, too.
"""
