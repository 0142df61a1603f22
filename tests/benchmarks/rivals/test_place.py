"""Namespaces that engines share: their processes are counted, opened to each other, and ended."""

import os
import subprocess
import sys

from tests.benchmarks.rivals.costs import Cost, cost_of, costs, spent_s
from tests.benchmarks.rivals.place import end_all, open_homes
from tests.emulation.namespaces import anywhere
from tests.emulation.network import Network, Node, hear
from tests.emulation.setups import Setup, peers
from tests.emulation.test_network import listen, sending

# A process with a child process, as hivemind's peers have.
TWO_PROCESSES = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "print('there', flush=True); import time; time.sleep(600)"])
time.sleep(600)
"""
HOMES = Setup("homes", peers("home", (2, 50, 50), reachable=False), 1000, "home-1", 1.0)


def started(node: Node) -> "subprocess.Popen[str]":
    process = node.start(sys.executable, "-S", "-c", TWO_PROCESSES, stdout=subprocess.PIPE, text=True)
    assert hear(process) == "there"
    return process


def test_costs_cover_all_processes_of_a_peer_until_end_all() -> None:
    with anywhere(HOMES, shaped=False) as network:
        process = started(network["home-1"])
        if network.internet is not None:
            alone, both = cost_of([process.pid]), costs(network)
            assert both["home-1"].peak_mb > 1.5 * alone.peak_mb > 0
            assert both["home-2"] == Cost()
        end_all(network)
        assert process.poll() is not None
        assert costs(network)["home-1"] == Cost()


def test_who_has_ended_costs_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    assert cost_of([process.pid]) == Cost()
    assert cost_of([os.getpid(), process.pid]).peak_mb > 0


def test_what_is_spent_is_the_difference_also_of_who_came_later() -> None:
    assert spent_s({"one": Cost(2.0, 9.0)}, {"one": Cost(5.0, 9.0), "two": Cost(1.0, 1.0)}) == 4.0


def dialled(network: Network) -> str:
    one, other = network["home-1"], network["home-2"]
    return hear(sending(one, other.address, listen(other, other.address), patience_s=1))


def test_opened_homes_reach_each_other_in_the_same_namespaces() -> None:
    with anywhere(HOMES, shaped=False) as network:
        if network.internet is None:
            assert dialled(network) == "all"
            return
        assert dialled(network) != "all"
        open_homes(network)
        assert dialled(network) == "all"
