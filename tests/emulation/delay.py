"""Round-trip time without netem: a program delays every packet of a link by half of that time, in each direction.

A delayed link consists of two tap devices instead of a veth pair. One device is in the peer's namespace and one on the
bridge, each with its own queue. `python -m tests.emulation.delay DELAY_S INDEX...` creates `p<INDEX>` and `d<INDEX>` in
its namespace, prints "ready", and carries packets until its input ends. For each input line the program prints as JSON
what it carried, lost and used. A burst that TCP sends at once crosses as one packet with its virtio header. Otherwise
Python could not carry 50 Mb/s."""

import contextlib
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tests.emulation.network import Node, hear, tell

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TAP_WITHOUT_INFO_WITH_OFFLOADS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
CHECKSUMS_AND_TCP = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4
LARGEST = 10 + 14 + 65536  # virtio header, Ethernet, IP
MOST_BYTES_PER_S = 50e6 / 8
SPARE_BYTES = 256 * 1024
TICK_S = 0.001  # polling interval in seconds; waking for each packet would cost more than carrying it
AT_ONCE = 64  # packets read from one side before the other sides have their turn


class Held(NamedTuple):
    due: float
    side: int  # the file descriptor to which the packet is written
    packet: bytes


@dataclass
class Account:
    """Counts of packets that the program carried and lost, and the CPU seconds that it used."""

    packets: int = 0
    bytes: int = 0
    lost: int = 0
    latest_s: float = 0.0  # the longest time that a packet left after its due time
    cpu_s: float = 0.0


class Delay:
    """Carries packets between pairs of file descriptors. Each read returns one packet, and each write takes one.

    At most `most_bytes` per side are in transit, enough for 50 Mb/s. Further packets are lost, as at a router."""

    def __init__(self, pairs: list[tuple[int, int]], delay_s: float) -> None:
        self._delay_s = delay_s
        self._across = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
        self._most_bytes = round(MOST_BYTES_PER_S * delay_s) + SPARE_BYTES
        self._on_the_way = dict.fromkeys(self._across, 0)  # bytes in transit, by the side where they leave
        self._held: deque[Held] = deque()  # packets in the order in which they are due
        self.account = Account()
        for side in self._across:
            os.set_blocking(side, False)

    def carry(self, stop: int) -> None:
        """Carry packets until the descriptor `stop` has something to read."""
        while True:
            if self._held:
                time.sleep(TICK_S)
            ready, _, _ = select.select([stop, *self._across], [], [], 0.0 if self._held else None)
            for side in ready:
                if side != stop:
                    self._take(side)
            self._let_go()
            if stop in ready:
                return

    def _take(self, side: int) -> None:
        out = self._across[side]
        for _ in range(AT_ONCE):
            try:
                packet = os.read(side, LARGEST)
            except BlockingIOError:
                return
            if self._on_the_way[out] + len(packet) > self._most_bytes:
                self.account.lost += 1
                continue
            self._on_the_way[out] += len(packet)
            self._held.append(Held(time.monotonic() + self._delay_s, out, packet))

    def _let_go(self) -> None:
        while self._held and self._held[0].due <= (now := time.monotonic()):
            due, side, packet = self._held.popleft()
            self._on_the_way[side] -= len(packet)
            self.account.latest_s = max(self.account.latest_s, now - due)
            try:
                os.write(side, packet)
            except OSError:  # the device is down or its queue is full
                self.account.lost += 1
                continue
            self.account.packets += 1
            self.account.bytes += len(packet)


def start(internet: Node, indexes: list[int], round_trip_s: float) -> "subprocess.Popen[str]":
    """Start the program that creates the tap devices of the given peers in the bridges' namespace and carries their
    packets."""
    return internet.converse("tests.emulation.delay", str(round_trip_s / 2), *map(str, indexes))


def account(process: "subprocess.Popen[str]") -> Account:
    tell(process, "")
    return Account(**json.loads(hear(process)))


def tap(name: str) -> int:
    """Create a tap device in this process's namespace and return its file descriptor."""
    side = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(side, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_INFO_WITH_OFFLOADS))
    fcntl.ioctl(side, TUNSETOFFLOAD, CHECKSUMS_AND_TCP)
    return side


def main(delay_s: str, *indexes: str) -> None:
    delay = Delay([(tap(f"p{index}"), tap(f"d{index}")) for index in indexes], float(delay_s))
    print("ready", flush=True)
    while True:
        delay.carry(stop=0)
        if not os.read(0, 4096):
            return
        delay.account.cpu_s = time.process_time()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(asdict(delay.account)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
