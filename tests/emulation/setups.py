"""Set-ups as data: peers, links, and the size of the vector. `setup(NAME)` returns one at its default scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Role = Literal["trainer", "auxiliary", "relay"]
Pair = tuple[str, str]  # from, to

MBIT = 1e6 / 8  # bytes per second
MOST_PEERS = 200  # peers have addresses in a /24 network
LEAST_MBIT, MOST_MBIT = 0.1, 30_000.0  # rates to which the kernel's queues can limit a link
MOST_DELAYED_MBIT = 50.0  # highest rate of a link through the process that delays packets


@dataclass(frozen=True)
class Peer:
    """One machine and its link, in Mb/s. Other peers can dial the machine only if it is reachable."""

    name: str
    role: Role
    up_mbit: float
    down_mbit: float
    reachable: bool = True
    region: str = ""  # empty: no pair with this peer is limited


@dataclass(frozen=True)
class Rates:
    """The rates of each link, up and down, and of each limited ordered pair, in bytes/s."""

    up: Mapping[str, float]
    down: Mapping[str, float]
    pairs: Mapping[Pair, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """Peers and the vector that they average. Creating one raises ValueError if the set-up cannot be emulated."""

    name: str
    peers: tuple[Peer, ...]
    elements: int
    keeper: str  # the peer that keeps the log and receives every average
    default_scale: float
    pair_mbit: float = 0.0  # rate from a peer of one region to a peer of another; 0 means no limit
    round_trip_s: float = 0.0  # between a trainer or auxiliary and the peers that it dials; 0 means no added delay
    scale: float = 1.0  # factor on the rates; already applied to them

    def __post_init__(self) -> None:
        names = [peer.name for peer in self.peers]
        if not 0 < len(names) <= MOST_PEERS or len(set(names)) < len(names) or self.keeper not in names:
            raise ValueError(f"{self.name}: 1 to {MOST_PEERS} peers, each with its own name, one the log's keeper")
        if not all(LEAST_MBIT <= rate <= MOST_MBIT for peer in self.peers for rate in (peer.up_mbit, peer.down_mbit)):
            raise ValueError(f"{self.name}: a rate is {LEAST_MBIT:g} to {MOST_MBIT:g} Mb/s")
        if any(max(peer.up_mbit, peer.down_mbit) > MOST_DELAYED_MBIT for peer in self.peers if self.delays(peer)):
            raise ValueError(f"{self.name}: a delayed link carries at most {MOST_DELAYED_MBIT:g} Mb/s")

    def delays(self, peer: Peer) -> bool:
        return self.round_trip_s > 0 and peer.role != "relay"

    def limited_pairs(self) -> list[tuple[Peer, Peer]]:
        """Return the ordered pairs of peers in different regions, or an empty list if the set-up does not limit
        them."""
        placed = [peer for peer in self.peers if peer.region and self.pair_mbit]
        return [(one, other) for one in placed for other in placed if one.region != other.region]

    def scaled(self, scale: float) -> "Setup":
        peers = tuple(
            replace(peer, up_mbit=peer.up_mbit * scale, down_mbit=peer.down_mbit * scale) for peer in self.peers
        )
        return replace(self, peers=peers, pair_mbit=self.pair_mbit * scale, scale=self.scale * scale)

    def nominal(self) -> Rates:
        return Rates(
            up={peer.name: peer.up_mbit * MBIT for peer in self.peers},
            down={peer.name: peer.down_mbit * MBIT for peer in self.peers},
            pairs={(one.name, other.name): self.pair_mbit * MBIT for one, other in self.limited_pairs()},
        )


def peers(name: str, *links: tuple[int, float, float], role: Role = "trainer", **facts: Any) -> tuple[Peer, ...]:
    """Return peers NAME-1, NAME-2, … for links given as (count, up, down)."""
    rates = [(up, down) for count, up, down in links for _ in range(count)]
    return tuple(Peer(f"{name}-{index}", role, up, down, **facts) for index, (up, down) in enumerate(rates, 1))


# DeDLOC (Diskin et al. 2021), section 4.1, with ResNet-50.

RESNET_50 = 25_600_000
SLOW = peers("trainer", (16, 200, 200))
FAST = peers("server", (8, 1000, 1000))

# DeDLOC, section 4.2: ALBERT-large.

ALBERT = peers("trainer", (4, 200, 200), (8, 100, 100), (4, 50, 50))
HELPERS = peers("auxiliary", (4, 500, 500), role="auxiliary")

HOME_LINKS = ((6, 17, 300), (5, 300, 300), (2, 5, 30), (3, 15, 150))
MOST_HOME_MBIT_DELAYED = 30
HOME_RELAYS = peers("relay", (2, 1000, 1000), role="relay")

REGIONS = (
    *peers("east", (4, 1000, 1000), region="east"),
    *peers("west", (4, 1000, 1000), region="west"),
    *peers("relay", (1, 2000, 2000), role="relay"),
)


def homes(name: str, most_mbit: float, round_trip_s: float) -> Setup:
    """Return sixteen peers behind NAT, and two relays that carry all their traffic."""
    links = [(count, min(up, most_mbit), min(down, most_mbit)) for count, up, down in HOME_LINKS]
    everyone = (*peers("home", *links, reachable=False), *HOME_RELAYS)
    return Setup(name, everyone, 5_000_000, "relay-1", 1.0, round_trip_s=round_trip_s)


SETUPS = {
    made.name: made
    for made in (
        Setup("A", FAST, RESNET_50, "server-1", 0.05),
        Setup("B", SLOW, RESNET_50, "trainer-1", 0.1),
        Setup("C", (*FAST, *SLOW), RESNET_50, "server-1", 0.05),
        Setup("D", (*SLOW, *peers("auxiliary", (1, 2500, 2500), role="auxiliary")), RESNET_50, "trainer-1", 0.1),
        homes("homes", 1000, 0.0),
        homes("homes-rtt", MOST_HOME_MBIT_DELAYED, 0.08),
        Setup("albert", ALBERT, 17_700_000, "trainer-1", 0.4),
        Setup("albert-auxiliaries", (*ALBERT, *HELPERS), 17_700_000, "trainer-1", 0.4),
        Setup("regions", REGIONS, RESNET_50, "relay-1", 0.1, pair_mbit=50.0),
        Setup("four", peers("trainer", (2, 200, 200), (1, 50, 50), (1, 20, 20)), 10_000_000, "trainer-1", 1.0),
    )
}


def setup(name: str, scale: float | None = None) -> Setup:
    """Return a set-up by name, at its default scale or at `scale`. Raise KeyError or ValueError."""
    found = SETUPS[name]
    return found.scaled(found.default_scale if scale is None else scale)
