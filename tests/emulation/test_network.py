"""Reachability, the kernel's counters, and complete removal. On loopback each peer can dial every other."""

import itertools
import json
import os
import signal
import subprocess

import psutil
import pytest

from tests.emulation import counters
from tests.emulation.conftest import SMALL
from tests.emulation.kernel import queues, remains
from tests.emulation.kernel.commands import absent, run
from tests.emulation.namespaces import anywhere
from tests.emulation.network import Network, Node, end, hear
from tests.emulation.setups import Peer, Setup, peers

LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    while True:
        connection, _ = listening.accept()
        while connection.recv(65536):
            pass
        connection.send(b"all")
"""
SEND = """
import socket, sys
address, port, size, patience_s = sys.argv[1], *map(int, sys.argv[2:])
try:
    with socket.create_connection((address, port), patience_s) as connection:
        connection.settimeout(None)
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        print(connection.recv(3).decode())
except OSError as trouble:
    print(type(trouble).__name__)
"""


def listen(node: Node, address: str) -> str:
    return hear(node.python("-S", "-c", LISTEN, address, stdout=subprocess.PIPE, text=True))


def sending(node: Node, address: str, port: str, size: int = 1, patience_s: int = 20) -> "subprocess.Popen[str]":
    """Start a sender that prints "all" if everything arrived, or else the name of the error."""
    return node.python("-S", "-c", SEND, address, port, str(size), str(patience_s), stdout=subprocess.PIPE, text=True)


def may_dial(one: Peer, other: Peer) -> bool:
    """Return True if the set-up allows the connection. A peer behind NAT can dial only relays, and no peer can dial
    it.
    """
    return other.reachable and (one.reachable or other.role != "trainer")


def test_who_can_dial_whom(network: Network) -> None:
    ports = {name: listen(node, node.address) for name, node in network.nodes.items()}
    pairs = list(itertools.permutations(SMALL.peers, 2))
    can = {pair for pair in pairs if network.internet is None or may_dial(*pair)}
    # All attempts run at once. Dialling a home gets no answer, and one second is enough to see that.
    tries = {
        (one, other): sending(
            network[one.name],
            network[other.name].address,
            ports[other.name],
            patience_s=20 if (one, other) in can else 1,
        )
        for one, other in pairs
    }
    assert {pair for pair, process in tries.items() if hear(process) == "all"} == can


def test_control_addresses_lead_only_to_the_coordinator(network: Network) -> None:
    host = Node("host", network.host_address, network.host_address, "")
    try:
        port = listen(host, host.address)
        assert {hear(sending(node, host.address, port)) for node in network.nodes.values()} == {"all"}
    finally:
        end(host.started)
    one, other = network["relay-1"], network["server-1"]
    if network.internet is not None:
        port = listen(other, other.control_address)
        assert hear(sending(one, other.control_address, port, patience_s=1)) != "all"


def test_the_kernel_counts_what_was_sent_for_those_who_sent_it(network: Network) -> None:
    size = 300_000
    port = listen(network["relay-1"], network["relay-1"].address)
    before = counters.traffic(network)
    assert hear(sending(network["home-1"], network["relay-1"].address, port, size)) == "all"
    after = counters.traffic(network)
    grown = {name: after[name] - before[name] for name in after}
    assert size < grown["home-1"].up.bytes < 2 * size
    assert size < grown["relay-1"].down.bytes < 2 * size
    assert grown["home-1"].up.packets > 1
    if network.internet is not None:
        others = [count.bytes for name in ("home-2", "server-1") for count in (grown[name].up, grown[name].down)]
        assert max(grown["home-1"].down.bytes, grown["relay-1"].up.bytes, *others) < size / 4
        assert {(each.control_up.bytes, each.control_down.bytes) for each in grown.values()} == {(0, 0)}


def test_no_device_has_an_ipv6_address_that_announces_itself(network: Network) -> None:
    """For a few seconds after a device comes up, IPv6 announces its addresses to every device on a bridge."""
    if network.internet is None:
        return
    for namespace in (node.namespace for node in (network.internet, *network.nodes.values())):
        shown = json.loads(run(["ip", "-n", namespace, "-j", "-6", "address", "show", "up"]))
        assert [device["ifname"] for device in shown if device and device["ifname"] != "lo"] == []


def test_control_is_counted_apart(network: Network) -> None:
    host = Node("host", network.host_address, network.host_address, "")
    size = 100_000
    before = counters.traffic(network)["home-1"]
    try:
        assert hear(sending(network["home-1"], host.address, listen(host, host.address), size)) == "all"
    finally:
        end(host.started)
    grown = counters.traffic(network)["home-1"] - before
    if network.internet is not None:
        assert size < grown.control_up.bytes < 2 * size
        assert 0 < grown.control_down.bytes < size / 4
        assert grown.up.bytes < size / 4
    else:
        assert size < grown.up.bytes


def test_a_pair_between_regions_has_a_queue_of_its_own() -> None:
    regions = (*peers("east", (1, 100, 100), region="east"), *peers("west", (1, 100, 100), region="west"))
    setup = Setup("two", (*regions, *SMALL.peers[-1:]), 1, "relay-1", 1.0, pair_mbit=50)
    with anywhere(setup) as network:
        seen = []
        for name in ("west-1", "relay-1"):
            port = listen(network[name], network[name].address)
            assert hear(sending(network["east-1"], network[name].address, port, 300_000)) == "all"
            seen.append(used_queues(network["east-1"]))
    assert seen == ([["1:100"], ["1:100", "1:2"]] if network.internet is not None else [[], []])


def used_queues(node: Node) -> list[str]:
    if not node.namespace:
        return []
    shown = json.loads(run(["tc", "-n", node.namespace, "-s", "-j", "qdisc", "show", "dev", "data"]))
    return sorted(queue["parent"] for queue in shown if queue["kind"] == "bfifo" and queue["bytes"] > 100_000)


def test_networks_never_collide_and_unshaped_homes_are_hidden() -> None:
    with anywhere(SMALL) as one, anywhere(SMALL, shaped=False) as other:
        if one.internet is not None:
            assert one.host_address != other.host_address
            assert "htb" not in run(["tc", "-n", other["server-1"].namespace, "qdisc", "show", "dev", "data"])
        port = listen(other["home-1"], other["home-1"].address)
        said = hear(sending(other["relay-1"], other["home-1"].address, port, patience_s=1))
        assert (said == "all") == (other.internet is None)
        port = listen(other["relay-1"], other["relay-1"].address)
        assert hear(sending(other["home-1"], other["relay-1"].address, port)) == "all"


# The end

LEAVE_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
input()
"""


def runs(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def fail_within(seen: "list[tuple[Network, subprocess.Popen[str], int]]") -> None:
    with anywhere(SMALL) as network:
        pipe = subprocess.PIPE
        process = network["home-1"].python("-S", "-c", LEAVE_A_CHILD, stdin=pipe, stdout=pipe, text=True)
        seen.append((network, process, int(hear(process))))
        raise ZeroDivisionError


def test_after_an_exception_nothing_is_left() -> None:
    seen: list[tuple[Network, subprocess.Popen[str], int]] = []
    with pytest.raises(ZeroDivisionError):
        fail_within(seen)
    network, process, child = seen[0]
    assert process.returncode is not None
    if network.internet is None:
        os.kill(child, signal.SIGKILL)  # the network does not know this child process
    else:
        assert not runs(child)
        assert remains.named(network.internet.namespace.removesuffix("internet")) == []
        assert network.host_address not in run(["ip", "addr"])


def test_what_cannot_be_built_leaves_nothing() -> None:
    long = Setup("long", peers("x" * 300, (2, 1, 1)), 1, f"{'x' * 300}-1", 1.0)
    before = remains.named(f"mh{os.getpid()}-")
    with pytest.raises((RuntimeError, ZeroDivisionError)), anywhere(long):
        raise ZeroDivisionError  # loopback has no namespaces
    assert remains.named(f"mh{os.getpid()}-") == before


@pytest.mark.parametrize(
    ("platform", "user", "there", "says"),
    [
        ("darwin", 0, "ip tc", "Linux"),
        ("linux", 0, "tc", "no ip here"),
        ("linux", 0, "", "no ip and no tc here"),
        ("linux", 1000, "ip tc", "sudo"),
        ("linux", 0, "ip tc", ""),
    ],
)
def test_what_is_lacking_is_said(platform: str, user: int, there: str, says: str) -> None:
    said = absent(platform, user, lambda program: program if program in there.split() else None)
    assert says in said
    assert bool(said) == bool(says)


def test_changed_rate_keeps_the_classes_and_queue_of_a_link() -> None:
    changed = [line.replace(" change ", " add ") for line in queues.changed("data", 1e5)]
    root, *made = queues.shaped("data", 1e5)
    assert root.startswith("qdisc add dev data root")
    assert sorted(changed) == sorted(made)
