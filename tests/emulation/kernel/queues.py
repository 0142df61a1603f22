"""Queues that limit a link's rate: lines for `tc`, one htb class per limit.

A queue holds what a link carries in 0.1 s, as a home router does, and drops the rest."""

from collections.abc import Iterator, Mapping

LONGEST_WAIT_S = 0.1
BURST_S = 0.004  # seconds that the kernel may wake up late without losing rate
LEAST_BURST = 16 * 1024
UNLIMITED = 1.25e9  # bytes per second: more than this machine can move
FRAME = 1514
ROOT, REST, NEW_CONNECTIONS, FIRST_PAIR = 0x1, 0x2, 0x3, 0x100


def shaped(
    device: str, rate: float, pairs: Mapping[str, float] | None = None, *, refuses_connections: bool = False
) -> Iterator[str]:
    """Limit a device's output to `rate` bytes per second, and to lower rates toward the addresses in `pairs`.

    `refuses_connections`: dialling the peer behind the device gets no answer, as with a home router.
    """
    pairs = pairs or {}
    yield f"qdisc add dev {device} root handle 1: htb default {REST:x}"
    yield limit(device, "1:", ROOT, rate, rate)
    # The guaranteed rates of the pairs are subtracted here. The class may still borrow up to the full rate.
    yield limit(device, "1:1", REST, max(rate - sum(pairs.values()), rate / 10), rate)
    yield fifo(device, REST, rate)
    for index, (address, most) in enumerate(pairs.items(), FIRST_PAIR):
        yield limit(device, "1:1", index, most, most)
        yield fifo(device, index, most)
        yield f"filter add dev {device} parent 1: protocol ip prio 2 u32 match ip dst {address}/32 flowid 1:{index:x}"
    if refuses_connections:
        yield from without_new_connections(device, rate)


def changed(device: str, rate: float) -> Iterator[str]:
    """Change the rate of a shaped device without limited pairs. The device's queue keeps its length in seconds."""
    for line in (limit(device, "1:", ROOT, rate, rate), limit(device, "1:1", REST, rate, rate)):
        yield line.replace("class add", "class change", 1)
    yield fifo(device, REST, rate).replace("qdisc add", "qdisc change", 1)


def limit(device: str, parent: str, index: int, rate: float, most: float) -> str:
    """Return the line for a class with a guaranteed `rate` that may borrow up to `most`."""
    burst, most_burst = (max(LEAST_BURST, round(each * BURST_S)) for each in (rate, most))
    return (
        f"class add dev {device} parent {parent} classid 1:{index:x} htb rate {round(rate * 8)}bit"
        f" ceil {round(most * 8)}bit burst {burst} cburst {most_burst} quantum {10 * FRAME}"
    )


def fifo(device: str, index: int, rate: float) -> str:
    return f"qdisc add dev {device} parent 1:{index:x} bfifo limit {LEAST_BURST + round(rate * LONGEST_WAIT_S)}"


def without_new_connections(device: str, rate: float) -> Iterator[str]:
    """Drop the first packet of each TCP connection: SYN without ACK, in byte 13 after the 20 bytes of the IP header."""
    yield limit(device, "1:1", NEW_CONNECTIONS, rate / 10, rate)
    yield f"qdisc add dev {device} parent 1:{NEW_CONNECTIONS:x} blackhole"
    yield (
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 match ip ihl 5 0xf match ip protocol 6 0xff"
        f" match u8 0x02 0x12 at 33 flowid 1:{NEW_CONNECTIONS:x}"
    )
