"""Who can be told something together."""

RELAYS = "relays"


def group_of(run: str) -> str:
    return f"run.{run}"


def watchers_of(run: str) -> str:
    """The group of all who look when a step of the run is committed."""
    return f"watchers.{run}"


def sessions_of(peer: str, run: str) -> str:
    """The group of the sockets of one machine in one run: of which there is to be one."""
    return f"sessions.{peer}.{run}"
