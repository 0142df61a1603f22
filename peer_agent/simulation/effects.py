"""Starts and ends the effects of each kind of fault in the simulated world. `churn` decides when faults occur."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from peer_agent.protocol.identifiers import PeerId
from peer_agent.simulation.faults import NOBODY, Kind, Ordered
from peer_agent.simulation.site import Peer
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import World

FOR_EVER_S = 1e7  # duration of an endless hang: longer than any simulation
SLOW = 0.1  # a slow peer's fraction of its usual speed
EVENING_S = 60.0  # the time in which all trainers leave, or all come back
DAY_S = 2 * 3600.0  # the shortest time between two nights
PING_S = 30.0  # time before the site notices that a closed laptop does not answer

End = Callable[[], None]


class Target(NamedTuple):
    """A fault's victim, and how long the fault lasts in virtual seconds. `peer` is NOBODY if the victim is the site."""

    world: World
    peer: PeerId
    lasts_s: float

    @property
    def until(self) -> float:
        return self.world.clock.now + self.lasts_s

    @property
    def victim(self) -> Peer:
        return self.world.peers[self.peer]

    @property
    def trainer(self) -> Trainer:
        """The victim of a fault that affects only trainers."""
        return self.world.trainers[self.peer]


def inject(world: World, kind: Kind, peer: PeerId, lasts_s: float) -> None:
    """Start a fault, and end it after `lasts_s` virtual seconds. Do nothing to a peer that is dead or frozen."""
    if peer and (not world.peers[peer].alive or world.peers[peer].frozen):
        return
    world.faults.fired[kind] += 1
    end = EFFECTS[kind](Target(world, peer, lasts_s))
    if end is not None:
        world.clock.after(lasts_s, end)


def obey(world: World) -> None:
    """Inject each ordered fault at the start of its round.

    Message faults are left to the sockets, and database faults to the database.
    """

    def begin_round() -> None:
        for fault in world.faults.due(frozenset(EFFECTS), world.database.step + 1):
            inject(world, fault.kind, fault.peer, fault.lasts_s)

    world.on_commit.append(begin_round)
    begin_round()


def order(
    world: World, kind: Kind, peer: PeerId = NOBODY, *, round_: int = 1, of: str = "", lasts_s: float = 10.0
) -> None:
    world.faults.order(Ordered(kind, peer, round_, of, lasts_s))


def heal(world: World) -> None:
    """End all faults. From now on, no message is lost, and every peer is alive and connected."""
    world.faults.odds = {}
    world.faults.waiting.clear()
    world.unreachable.clear()
    world.layer_back_at = world.database.back_at = world.night_until = 0.0
    for trainer in world.trainers.values():
        trainer.damaged = False
    for peer in world.peers.values():
        peer.pace, peer.disk_full = 1.0, False
        peer.resume()
        peer.thaw()
        start(world, peer)
        peer.connect()
    if world.host is None:
        world.start_host()
    elif world.host.frozen:
        world.host.thaw()


def start(world: World, peer: Peer) -> None:
    """Start a dead peer's process. At night, trainers are not started."""
    is_night = world.clock.now < world.night_until and peer.peer in world.trainers
    if not peer.alive and not is_night:
        peer.start()


# --- peers


def _kill(target: Target) -> End:
    target.victim.kill()
    return lambda: start(target.world, target.victim)


def _freeze(target: Target) -> End:
    target.victim.freeze()
    return target.victim.thaw


def _hang(target: Target) -> End:
    target.victim.hang()
    return target.victim.resume


def _part(target: Target) -> End:
    pair = target.peer, list(target.world.relays)[-1]
    target.world.unreachable.add(pair)
    return lambda: target.world.unreachable.discard(pair)


def _damage(target: Target) -> End:
    target.trainer.damaged = True
    return lambda: setattr(target.trainer, "damaged", False)


def _slow(target: Target) -> End:
    target.victim.pace = SLOW
    return lambda: setattr(target.victim, "pace", 1.0)


def _fill(target: Target) -> End:
    target.victim.disk_full = True
    return lambda: setattr(target.victim, "disk_full", False)


# --- the site


def _kill_site(target: Target) -> End:
    target.world.kill_host()
    return target.world.start_host


def _replace_host(target: Target) -> None:
    """End the host's process.

    Another host starts `lasts_s` later, when the old claim has nearly or just expired. Sockets stay open.
    """
    if target.world.host is not None:
        target.world.replace_host(target.world.host, target.lasts_s)


def _freeze_host(target: Target) -> End | None:
    host = target.world.host
    if host is None:
        return None
    host.freeze()
    return host.thaw


# --- the night


def _night(target: Target) -> End | None:
    """Remove all trainers until morning: each leaves, is killed, or has its laptop closed.

    Do nothing if the last night ended less than DAY_S ago.
    """
    world = target.world
    if world.clock.now < world.night_until + DAY_S:
        return None
    world.night_until = world.clock.now + target.lasts_s
    ways = (Trainer.leave, Trainer.kill, partial(_close_lid, target))
    for number, trainer in enumerate(world.trainers.values()):
        trainer.after(_some_time(world), partial(_go, world, partial(ways[number % len(ways)], trainer)))
    return partial(_morning, world)


def _go(world: World, way: Callable[[], None]) -> None:
    if world.clock.now < world.night_until:
        way()


def _morning(world: World) -> None:
    for trainer in world.trainers.values():
        world.clock.after(_some_time(world), partial(start, world, trainer))


def _some_time(world: World) -> float:
    return world.faults.chance.uniform(0, EVENING_S)


def _close_lid(target: Target, trainer: Trainer) -> None:
    trainer.freeze()
    target.world.clock.after(PING_S, lambda: trainer.disconnect() if trainer.frozen else None)
    target.world.clock.after(target.lasts_s + _some_time(target.world), partial(_open_lid, trainer))


def _open_lid(trainer: Trainer) -> None:
    trainer.thaw()
    trainer.connect()


EFFECTS: dict[Kind, Callable[[Target], End | None]] = {
    "killed": _kill,
    "reconnected": lambda target: target.victim.reconnect(target.lasts_s),
    "frozen": _freeze,
    "gave back": lambda target: target.trainer.give_back(),
    "hung": _hang,
    "far": _part,
    "damaged": _damage,
    "differs": lambda target: setattr(target.trainer, "corrupt", True),  # lasts until the trainer reloads
    "slow": _slow,
    "full": _fill,
    "site killed": _kill_site,
    "host replaced": _replace_host,
    "host frozen": _freeze_host,
    "host overtaken": lambda target: target.world.overtake_host(target.lasts_s),
    "layer away": lambda target: setattr(target.world, "layer_back_at", target.until),
    "database away": lambda target: setattr(target.world.database, "back_at", target.until),
    "night": _night,
}
