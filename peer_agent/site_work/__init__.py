"""The site's long tasks, in child processes: preparing data, replaying logs, evaluating, and generating text. Only the
site uses this package. Tasks that also run on volunteers' machines are in `peer_agent.publishing`.
"""
