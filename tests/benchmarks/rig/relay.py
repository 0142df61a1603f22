"""The real relay with a credential that it issues itself: `python -m tests.benchmarks.rig.relay FOLDER PEER CONTROL
[ADDRESS [ROLE [PORT]]]`. With PORT, `rig.front` passes connections on from that port."""

import asyncio
import socket
import sys
from pathlib import Path

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.relay.place import own_certificate
from peer_agent.relay.process import Relay
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import ROOT, leave_with_parent
from tests.benchmarks.rig.tally import count_into


def main(folder: str, peer: str, control: str, *more: str) -> None:
    leave_with_parent()
    address, role, port = (*more, *("127.0.0.1", "relay", "")[len(more) :])
    count_into(Path(folder))
    access = OwnAccess(Path(folder), PeerId(peer), Role(role), control)
    certificate = own_certificate(access.home) if access.role is Role.AUXILIARY else None
    handed_over, advertise = (_door(Path(folder)), f"ws://{address}:{port}/relay/") if port else (None, "")
    relay = Relay(
        access.home, access, host=address, port=0, advertise=advertise, certificate=certificate, handed_over=handed_over
    )
    asyncio.run(relay.run())


def _door(folder: Path) -> socket.socket:
    sys.path[:0] = [str(ROOT / "platform")]
    from server.door import open_door
    from server.lock import Place

    return open_door(Place(folder, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
