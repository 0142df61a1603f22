"""Releases, the Hugging Face Hub, and shards of public texts. Long work runs in child processes.

A volunteer's machine can run all of it. Work that only the site does is in `peer_agent.site_work`.
"""
