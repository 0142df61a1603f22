"""Addresses of the control networks, from the range for benchmarks (RFC 2544), and of the data network.

The data network uses a private range, because hivemind's library libp2p never announces addresses in the benchmark
range.
"""

from ipaddress import IPv4Network

DATA = IPv4Network("10.198.0.0/16")  # every emulation uses the same addresses, since each has bridges of its own
# one network per emulation, since the host is in all of them
CONTROLS = list(IPv4Network("198.19.0.0/16").subnets(new_prefix=24))
SINK = str(DATA[-2])  # address of the calibration's sink


def data_address(index: int) -> str:
    return str(DATA[index + 1])


def control_address(slot: int, index: int) -> str:
    return str(CONTROLS[slot][index + 2])


def host_address(slot: int) -> str:
    return str(CONTROLS[slot][1])
