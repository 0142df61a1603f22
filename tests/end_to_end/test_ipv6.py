"""A site at an IPv6 address: a machine joins over its relay, and gets credit for its work."""

import socket
import subprocess
from pathlib import Path

import pytest

from demo.processes import bare_environment
from tests.end_to_end.rig.swarm import MANYHANDS, Swarm


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_machine_gets_credit_over_ipv6(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.start_site(host="::1")
        assert swarm.url == f"http://[::1]:{swarm.port}"
        organizer = swarm.sign_up("Amina")
        swarm.open_endless_run(organizer, english)
        swarm.start_agent("desk", token=swarm.token_of(organizer), options="--listen --host ::1")
        swarm.wait_for_step(2)
        (row,) = swarm.items("leaderboard")
        assert (row["name"], row["samples"] > 0) == ("Amina", True)
        home = bare_environment(tmp_path / "desk")
        said = subprocess.run([MANYHANDS, "doctor"], env=home, capture_output=True, text=True, check=True).stdout
        assert f"{swarm.url} answers" in said
        assert "ws://[::1]:" in said, "the relay has such an address too"
