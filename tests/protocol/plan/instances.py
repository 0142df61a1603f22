"""Rounds of all kinds, generated from seeds, and the set-ups that the literature compares."""

import random

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Limits, Party

CODECS = (1.0, 0.5, 0.25)  # bytes of a gradient, as a fraction of fp32


def peer(number: int) -> PeerId:
    """Return a peer's id. Ids ascend with the peers' numbers."""
    return PeerId(f"{number:032x}")


def trainer(number: int, speed: float, download: float = 0, *, up_bytes: float = 1.0, household: str = "") -> Party:
    """Return a party that contributes, receives and may reduce. Its link is symmetric unless `download` is given."""
    return Party(
        peer=peer(number),
        up_bytes=up_bytes,
        receives=True,
        may_reduce=True,
        is_volunteer=True,
        upload_bps=speed,
        download_bps=download or speed,
        household=household,
    )


def auxiliary(number: int, speed: float) -> Party:
    return Party(peer=peer(number), may_reduce=True, upload_bps=speed, download_bps=speed)


def keeper(number: int, speed: float) -> Party:
    return Party(peer=peer(number), receives=True, upload_bps=speed, download_bps=speed)


def trainers(count: int, speed: float, first: int = 0) -> list[Party]:
    return [trainer(first + i, speed) for i in range(count)]


def albert() -> list[Party]:
    """Return DeDLOC's ALBERT round. Rates are in Gb/s, and sizes are multiples of the vector's."""
    return trainers(4, 0.2) + trainers(8, 0.1, 4) + trainers(4, 0.05, 12)


def two_regions() -> tuple[list[Party], Limits]:
    """Return two regions of four peers with slow pairs between them, and an auxiliary that all peers reach."""
    near, far = trainers(4, 1.0), trainers(4, 1.0, 4)
    between = {(a.peer, b.peer): 0.05 for a in near for b in far}
    return [*near, *far, auxiliary(8, 2.0)], Limits(pairs=between | {(b, a): bps for (a, b), bps in between.items()})


def mixed(seed: int, most: int = 24, *, unmeasured: float = 0.1) -> tuple[list[Party], float]:
    """Return up to `most` peers of all roles, at least one of which may reduce. Their links differ by up to five
    orders of magnitude.
    """
    chance = random.Random(seed)
    vector = 10 ** chance.uniform(5, 9)
    parties = [_of_chance(chance, number, vector, unmeasured) for number in range(chance.randint(1, most))]
    if not any(party.may_reduce for party in parties):
        parties.append(auxiliary(most, 10 ** chance.uniform(5, 9)))
    return parties, vector * chance.choice(CODECS)


def _of_chance(chance: random.Random, number: int, vector: float, unmeasured: float) -> Party:
    def bps() -> float:
        return 0.0 if chance.random() < unmeasured else 10 ** chance.uniform(4, 9)

    role = chance.choices(("trainer", "auxiliary", "keeper", "replica"), (6, 2, 1, 1))[0]
    return Party(
        peer=peer(number),
        up_bytes=vector * chance.choice(CODECS) if role == "trainer" else 0.0,
        receives=role != "auxiliary",
        is_awaited=role != "replica" or chance.random() < 0.5,
        may_reduce=role == "auxiliary" or (role == "trainer" and chance.random() < 0.7),
        is_volunteer=role in ("trainer", "replica"),
        upload_bps=bps(),
        download_bps=bps(),
        duplex_bps=bps() if chance.random() < 0.2 else 0.0,
        household=chance.choice(("", "", "", "one", "two")),
    )


def coupled(seed: int, most: int = 24) -> tuple[list[Party], float, Limits]:
    """Return a mixed round with limits on pairs and households, and with some pairs whose traffic relays forward."""
    parties, down = mixed(seed, most)
    chance = random.Random(-seed - 1)
    pairs = [(a.peer, b.peer) for a in parties for b in parties if a is not b]
    limited = {pair: 10 ** chance.uniform(4, 8) for pair in pairs if chance.random() < 0.3}
    relays = [party.peer for party in parties if party.may_reduce and not party.is_volunteer]
    forwarded = {pair: chance.choice(relays) for pair in pairs if relays and chance.random() < 0.1}
    households = {"one": 10 ** chance.uniform(4, 8), "nobody's": 1.0}
    return parties, down, Limits(pairs=limited, forwarded=forwarded, households=households)
