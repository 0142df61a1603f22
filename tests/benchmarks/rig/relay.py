"""`python -m tests.benchmarks.rig.relay FOLDER PEER CONTROL [ADDRESS]`: the real relay, with access of its own."""

import asyncio
import sys
from pathlib import Path

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.relay.process import Relay
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent


def main(folder: str, peer: str, control: str, address: str = "127.0.0.1") -> None:
    """Serve until ended."""
    leave_with_parent()
    access = OwnAccess(Path(folder), PeerId(peer), Role.RELAY, control)
    asyncio.run(Relay(access.home, access, host=address, port=0, advertise="").run())


if __name__ == "__main__":
    main(*sys.argv[1:])
