"""The site's long tasks, in child processes: preparing data, replaying logs, evaluating, and generating text. Only the
site uses this package. Tasks that volunteers' machines also run are in `peer_agent.publishing`.
"""
