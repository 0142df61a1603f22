"""The real relay with a credential that it issues itself: `python -m tests.benchmarks.rig.relay FOLDER PEER CONTROL
[ADDRESS [ROLE]]`."""

import asyncio
import sys
from pathlib import Path

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.relay.place import own_certificate
from peer_agent.relay.process import Relay
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent
from tests.benchmarks.rig.tally import count_into


def main(folder: str, peer: str, control: str, address: str = "127.0.0.1", role: str = "relay") -> None:
    leave_with_parent()
    count_into(Path(folder))
    access = OwnAccess(Path(folder), PeerId(peer), Role(role), control)
    certificate = own_certificate(access.home) if access.role is Role.AUXILIARY else None
    relay = Relay(access.home, access, host=address, port=0, advertise="", certificate=certificate)
    asyncio.run(relay.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
