"""How a replay reaches relays: written by the site, read by the child process that replays."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.identifiers import Peer, Run
from peer_agent.protocol.messages import Listener

MOST_RELAYS = 32


class Reach(Struct, frozen=True):
    """Addresses, and a credential (as sealed) that the site writes anew before it runs out."""

    run: Run
    peer: Peer
    credential: Signed
    relays: Annotated[tuple[Listener, ...], Meta(max_length=MOST_RELAYS)]


def write_reach(path: Path, reach: Reach) -> None:
    """Write it whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.msgpack.encode(reach))
    draft.replace(path)


def read_reach(path: Path) -> Reach:
    """Read how relays are reached, as it was written last."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Reach)
