"""Random faults: peers die, sleep, hang, lose links or run out of disk space, and the site restarts."""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from peer_agent.simulation import effects
from peer_agent.simulation.faults import NOBODY, Kind
from peer_agent.simulation.site import Peer
from peer_agent.simulation.world import World

NIGHT_S = 8 * 3600.0


class Spell(Struct, frozen=True):
    """The frequency and duration of a kind of fault for one victim, in virtual seconds.

    `every_s`: the mean time between two such faults. `shortest_s`, `longest_s`: limits on a fault's duration.
    """

    every_s: float
    shortest_s: float
    longest_s: float
    for_ever: float = 0.0  # probability that the fault never ends


TRAINERS: Mapping[Kind, Spell] = {
    "killed": Spell(1000, 0.5, 60),
    "reconnected": Spell(500, 0.1, 30),
    "frozen": Spell(1000, 1, 60),
    "gave back": Spell(1000, 0, 0),
    "hung": Spell(4000, 60, 600, for_ever=0.3),
    "far": Spell(4000, 60, 600),
    "damaged": Spell(3000, 20, 120),
    "differs": Spell(3000, 0, 0),
}
RELAYS: Mapping[Kind, Spell] = {
    "killed": Spell(300, 0.5, 10),
    "reconnected": Spell(300, 0.1, 10),
    "frozen": Spell(400, 1, 30),
    "slow": Spell(400, 30, 120),
    "full": Spell(600, 30, 240),
}
SITE: Mapping[Kind, Spell] = {
    "site killed": Spell(400, 0.2, 3),
    "host replaced": Spell(400, 8, 11),
    "host frozen": Spell(300, 1, 15),
    "host overtaken": Spell(600, 15, 60),
    "layer away": Spell(300, 1, 5),
    "database away": Spell(600, 5, 30),
    "night": Spell(50_000, NIGHT_S * 0.9, NIGHT_S * 1.1),
}
ODDS: Mapping[Kind, float] = {
    "lost up": 0.005,
    "lost down": 0.005,
    "twice up": 0.005,
    "twice down": 0.005,
    "late up": 0.002,
    "late down": 0.002,
    "lost notice": 0.1,
    "unheard": 0.1,
    "failed": 0.03,
    "answer lost": 0.03,
    "unknown and not written": 0.03,
}
FIRST_NIGHT_S = 300.0  # when the first night begins: early, so that even short runs have one


class Conditions(Struct, frozen=True, kw_only=True):
    """The faults to inject, by kind. `nights`: when each night begins, in seconds from the start."""

    trainers: Mapping[Kind, Spell] = field(default_factory=dict)
    relays: Mapping[Kind, Spell] = field(default_factory=dict)
    site: Mapping[Kind, Spell] = field(default_factory=dict)
    odds: Mapping[Kind, float] = field(default_factory=dict)
    nights: tuple[float, ...] = ()


def all_conditions(churn: float = 1.0) -> Conditions:
    """Return all known faults at `churn` times their default rates, where 0 means no faults."""
    return Conditions() if not churn else only({*TRAINERS, *RELAYS, *SITE, *ODDS}, churn)


def only(kinds: set[Kind], churn: float = 1.0) -> Conditions:
    return Conditions(
        trainers=_spells(TRAINERS, kinds, churn),
        relays=_spells(RELAYS, kinds, churn),
        site=_spells(SITE, kinds, churn),
        odds={kind: min(1.0, odds * churn) for kind, odds in ODDS.items() if kind in kinds},
        nights=(FIRST_NIGHT_S,) if "night" in kinds else (),
    )


def _spells(spells: Mapping[Kind, Spell], kinds: set[Kind], churn: float) -> dict[Kind, Spell]:
    return {
        kind: Spell(spell.every_s / churn, spell.shortest_s, spell.longest_s, spell.for_ever)
        for kind, spell in spells.items()
        if kind in kinds
    }


def inject(world: World, conditions: Conditions) -> Callable[[], None]:
    """Start injecting faults, and return a function that stops new ones.

    Faults that have begun end on their own or through `effects.heal`.
    """
    over: list[bool] = []
    for victims, spells in ((world.trainers, conditions.trainers), (world.relays, conditions.relays)):
        for kind, spell in spells.items():
            _begin(world, over, kind, spell, list(victims.values()))
    for kind, spell in conditions.site.items():
        _begin(world, over, kind, spell, [])
    for after_s in conditions.nights:
        world.clock.after(after_s, lambda: None if over else effects.inject(world, "night", NOBODY, NIGHT_S))
    world.faults.odds = conditions.odds
    return lambda: over.append(True)


def _begin(world: World, over: list[bool], kind: Kind, spell: Spell, victims: list[Peer]) -> None:
    """Keep injecting one kind of fault into random victims, or into the site if `victims` is empty."""
    chance = world.faults.chance

    def strike() -> None:
        peer = victims[chance.randrange(len(victims))].peer if victims else NOBODY
        lasts_s = chance.uniform(spell.shortest_s, spell.longest_s)
        effects.inject(world, kind, peer, effects.FOR_EVER_S if chance.random() < spell.for_ever else lasts_s)

    _repeat(world, over, spell.every_s / max(1, len(victims)), strike)


def _repeat(world: World, over: list[bool], mean_s: float, strike: Callable[[], None]) -> None:
    def again() -> None:
        if not over:
            strike()
            _repeat(world, over, mean_s, strike)

    world.clock.after(world.faults.chance.expovariate(1 / mean_s), again)
