"""The site's long work, in child processes: prepare data, replay logs, evaluate, and generate text.
Only the site uses this package. Work that a volunteer's machine also does is in `peer_agent.publishing`.
"""
