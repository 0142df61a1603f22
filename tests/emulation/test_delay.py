"""Delayed packets arrive intact, in order and not too early; those beyond the limit are lost. No test checks how late
they arrive.
"""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulation import delay
from tests.emulation.delay import SPARE_BYTES, Delay
from tests.emulation.namespaces import anywhere
from tests.emulation.network import hear
from tests.emulation.setups import Setup, peers
from tests.emulation.test_network import listen

DELAY_S = 0.2
PATIENCE_S = 20.0


@contextmanager
def between(delay_s: float) -> Iterator[tuple[socket.socket, socket.socket, Delay]]:
    """Yield two sockets that carry each message as one packet, and the carrier between them."""
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    (one, inner), (other, outer) = ends
    for end in (one, other):
        end.settimeout(PATIENCE_S)
    heard, stop = os.pipe()
    carrier = Delay([(inner.fileno(), outer.fileno())], delay_s)
    thread = threading.Thread(target=carrier.carry, args=(heard,))
    thread.start()
    try:
        yield one, other, carrier
    finally:
        os.write(stop, b"!")
        thread.join()
        for end in (one, inner, other, outer):
            end.close()
        os.close(heard)
        os.close(stop)


def test_packets_are_held_both_ways_and_keep_their_order() -> None:
    with between(DELAY_S) as (one, other, carrier):
        for here, there in ((one, other), (other, one)):
            sent = [bytes([index]) * (100 + index) for index in range(5)]
            started = time.monotonic()
            for packet in sent:
                here.send(packet)
            assert [there.recv(1000) for _ in sent] == sent
            assert time.monotonic() - started >= DELAY_S
    assert (carrier.account.packets, carrier.account.bytes, carrier.account.lost) == (10, 2 * 510, 0)


def test_what_is_beyond_the_longest_queue_is_lost() -> None:
    one, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    other, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    carrier = Delay([(inner.fileno(), outer.fileno())], DELAY_S)
    size = 1500
    fit = (round(50e6 / 8 * DELAY_S) + SPARE_BYTES) // size
    for _ in range(fit + 3):
        one.send(bytes(size))
        carrier._take(inner.fileno())
    assert carrier.account.lost == 3
    other.send(b"the other way there is room")
    carrier._take(outer.fileno())
    assert carrier.account.lost == 3
    for end in (one, inner, other, outer):
        end.close()


CONNECT = """
import socket, sys, time
for _ in range(2):  # the first also asks for the address of the other's device
    started = time.monotonic()
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).close()
print(time.monotonic() - started)
"""


def test_a_round_trip_to_a_relay_takes_its_time() -> None:
    ends = (*peers("home", (1, 40, 40), reachable=False), *peers("relay", (1, 100, 100), role="relay"))
    with anywhere(Setup("far", ends, 1, "relay-1", 1.0, round_trip_s=DELAY_S)) as network:
        relay = network["relay-1"]
        port = listen(relay, relay.address)
        home = network["home-1"].python("-S", "-c", CONNECT, relay.address, port, stdout=subprocess.PIPE, text=True)
        took_s = float(hear(home))
        if network.delay is not None:
            assert took_s >= DELAY_S
            assert delay.account(network.delay).packets >= 3
