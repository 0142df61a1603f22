"""How the server that holds a socket learns that whoever is at its other end has proved who they are."""

from typing import Any

PROVED = "manyhands.proved"  # in the ASGI scope's extensions: a function that takes whose link it is


def say_proved(scope: dict[str, Any], owner: str) -> None:
    """From now on the server takes longer messages of this socket, and counts it as `owner`'s.

    Does nothing under a server that knows no such extension.
    """
    said = (scope.get("extensions") or {}).get(PROVED)
    if said is not None:
        said(owner)
