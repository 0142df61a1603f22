"""The site's long tasks, which run in child processes: preparing data, replaying logs, evaluating, generating text.
Only the site uses this package. Tasks that also run on volunteers' machines are in `peer_agent.publishing`.
"""
