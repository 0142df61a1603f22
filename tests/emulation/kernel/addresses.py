"""Addresses of the control networks, from those set aside for tests (RFC 2544), and of the data network.

The latter from a private range: libp2p, which a rival uses, tells nobody of addresses that are set aside for tests.
"""

from ipaddress import IPv4Network

DATA = IPv4Network("10.198.0.0/16")  # the same in every emulation: each has an internet of its own
CONTROLS = list(IPv4Network("198.19.0.0/16").subnets(new_prefix=24))  # one per emulation: the host is in all of them
SINK = str(DATA[-2])  # what a calibration sends to


def data_address(index: int) -> str:
    """Where the peer at this index is on the data network."""
    return str(DATA[index + 1])


def control_address(slot: int, index: int) -> str:
    """Where the peer at this index is on the control network of an emulation."""
    return str(CONTROLS[slot][index + 2])


def host_address(slot: int) -> str:
    """Where peers find what listens in the host's own namespace."""
    return str(CONTROLS[slot][1])
