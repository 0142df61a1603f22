"""Releases, the Hub, and shards of public texts. Long work runs in child processes.

A volunteer's machine does all of it. Work of the site alone is in `peer_agent.site_work`.
"""
