"""What becomes public, and what is made of what is: releases, the Hub, shards of texts. Long work is a child process.

A volunteer's machine does all of it; what the site alone does is in `peer_agent.site_work`.
"""
