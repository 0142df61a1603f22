"""Addresses of the control networks, from the range for tests (RFC 2544), and of the data network.

The data network is a private range: libp2p, which a rival uses, never announces addresses of the range for tests.
"""

from ipaddress import IPv4Network

DATA = IPv4Network("10.198.0.0/16")  # the same in every emulation: each has an internet of its own
CONTROLS = list(IPv4Network("198.19.0.0/16").subnets(new_prefix=24))  # one per emulation: the host is in all of them
SINK = str(DATA[-2])  # the calibration's sink


def data_address(index: int) -> str:
    return str(DATA[index + 1])


def control_address(slot: int, index: int) -> str:
    return str(CONTROLS[slot][index + 2])


def host_address(slot: int) -> str:
    return str(CONTROLS[slot][1])
