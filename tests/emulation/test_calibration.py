"""Calibration groups the peers and leaves the network unchanged. No test checks a rate."""

import itertools
import socket
import threading
import time

import pytest

from tests.emulation import counters, setups
from tests.emulation.calibration import Times, calibrated, groups, rate
from tests.emulation.counters import ProcessorTime
from tests.emulation.kernel import remains
from tests.emulation.kernel.commands import run
from tests.emulation.namespaces import anywhere
from tests.emulation.network import Network
from tests.emulation.programs import traffic
from tests.emulation.setups import MBIT, Setup, peers

TOGETHER = 3200 * MBIT


@pytest.mark.parametrize("name", setups.SETUPS)
def test_peers_are_measured_once_in_groups_within_capacity(name: str) -> None:
    everybody = setups.setup(name).peers
    found = list(groups(everybody, {}, TOGETHER))
    assert tuple(itertools.chain(*found)) == everybody
    assert all(sum(peer.up_mbit + peer.down_mbit for peer in group) <= 3200 for group in found if len(group) > 1)
    assert (len(found) == 1) == (not name.startswith("homes"))


def test_whom_the_sink_sends_less_there_is_room_for_more() -> None:
    homes = peers("home", (10, 10, 310), reachable=False)
    assert [len(group) for group in groups(homes, {}, 960 * MBIT)] == [3, 3, 3, 1]
    assert [len(group) for group in groups(homes, {peer.name: 10 * MBIT for peer in homes}, 960 * MBIT)] == [10]
    assert list(groups([], {}, 960 * MBIT)) == []


def test_links_and_pairs_are_measured_and_the_network_restored() -> None:
    ends = (
        *peers("east", (1, 20, 20), region="east"),
        *peers("west", (1, 20, 20), region="west"),
        *peers("home", (1, 10, 20), reachable=False),
    )
    with anywhere(Setup("both", ends, 1, "east-1", 1.0, pair_mbit=10.0)) as network:
        if network.internet is None:
            with pytest.raises(ValueError, match="loopback"):
                calibrated(network)
            return
        before = state(network)
        rates = calibrated(network, warm_up_s=0.0, measured_s=2.0)
        assert state(network) == before
    assert rates.up.keys() == rates.down.keys() == network.nodes.keys()
    assert rates.pairs.keys() == {("east-1", "west-1"), ("west-1", "east-1")}
    assert min(*rates.up.values(), *rates.down.values(), *rates.pairs.values()) > 0


def test_a_link_through_which_nothing_came_is_named() -> None:
    assert rate({"sink": {"home": 6}}, "home", "sink", Times(1.0, 2.0)) == 3.0
    with pytest.raises(RuntimeError, match="from far to sink"):
        rate({"sink": {"home": 6}}, "far", "sink", Times(1.0, 2.0))


def test_the_sink_sends_no_faster_than_it_is_told() -> None:
    one, other = socket.socketpair()
    with one, other:
        started = time.monotonic()
        sending = threading.Thread(target=traffic.send, args=(one, 10.0 * traffic.SMALL_PIECE))
        sending.start()
        other.recv(5 * traffic.SMALL_PIECE, socket.MSG_WAITALL)
        assert time.monotonic() - started >= 0.39  # the fifth piece leaves after four tenths of a second
        one.shutdown(socket.SHUT_RDWR)
        sending.join()


def state(network: Network) -> list[str]:
    assert network.internet is not None
    names = remains.named(network.internet.namespace.removesuffix("internet"))
    return [*names, *(run(["ip", "-n", name, "route"]) for name in names)]


@pytest.mark.parametrize(("busy_s", "part"), [(1.0, 0.0), (9.0, 0.8), (11.0, 1.0)])
def test_how_busy_the_machine_was(busy_s: float, part: float) -> None:
    assert counters.cpu_busy(ProcessorTime(1.0, 10.0), ProcessorTime(busy_s, 20.0)) == pytest.approx(part)


def test_waiting_for_a_disk_is_not_work_and_guests_count_once() -> None:
    times = {"user": 5.0, "steal": 1.0, "idle": 4.0, "iowait": 2.0, "guest": 3.0}
    assert counters.summed(times) == ProcessorTime(busy_s=6.0, all_s=12.0)


def test_a_processor_is_not_busier_than_always() -> None:
    before = counters.processor_time()
    sum(index * index for index in range(200_000))
    after = counters.processor_time()
    assert 0 < before.busy_s < before.all_s
    # the kernel reports hundredths of a second, as floats
    assert -0.005 <= after.busy_s - before.busy_s <= after.all_s - before.all_s + 0.05
