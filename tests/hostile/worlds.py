"""Three honest trainers and a relay in virtual time, alone or with a puppet."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.simulation.database import state_digest
from peer_agent.simulation.judge import Judge
from peer_agent.simulation.site import Host, Peer, name_of
from peer_agent.simulation.trainer import NATS, Trainer
from peer_agent.simulation.world import Setting, World
from tests.hostile.behaviours import Behaviour
from tests.hostile.puppet import PuppetRelay, PuppetTrainer
from tests.tier import length

SEED = 7
STEPS = length(64, 48)
SETTING = Setting(trainers=3, relays=1, steps=STEPS, seed=SEED, samples_each=16, snapshot_every=8)
LIMIT_S = 680.0  # virtual seconds; a run without a puppet takes half of that
MOST_BATCHES = 4  # most samples in one accumulator, in batches
REACHES_S = 2.0  # seconds between two reports of the links to a member that listens
FETCH_S = 0.5  # seconds between two looks for averages that a relay lacks
END_S = 200.0  # seconds for the last snapshot, if the puppet is elected to upload it and does not


class Watcher:
    """An observer of the host's commands that records admitted snapshots and the owners of revoked accumulators."""

    def __init__(self) -> None:
        self.admitted: list[e.Admitted] = []
        self.revoked: list[PeerId] = []
        self.penalised: set[PeerId] = set()

    def before(self, host: Host, event: e.Event, now: float) -> None:
        pass

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        del event, now
        records = ((member.peer, member.reliability) for member in host.state.members.values())
        state = host.state
        self.penalised |= {
            peer for peer, record in records if record.probation or not state.may_be_given_a_part(record)
        }
        for command in commands:
            if isinstance(command, e.Admitted):
                self.admitted.append(command)
            elif isinstance(command, e.Send) and isinstance(command.message, m.AccumulatorRevoked):
                self.revoked.extend(command.peers)

    def persisted(self, _: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        pass


class Outcome(Struct):
    """A finished run. `account`: the messages that the puppets sent and received, those that the site refused, and the
    run's notes.
    """

    world: World
    judge: Judge
    watcher: Watcher
    honest: tuple[Peer, ...]
    rate: float = 0.0  # steps per virtual second
    steps: int = 0
    finished: bool = False
    account: Counter[str] = Counter()


def run(behaviour: Behaviour | None) -> Outcome:
    judge, watcher = Judge(), Watcher()
    world = World(SETTING, [judge, watcher])
    honest = tuple(world.peers.values())
    puppets = [] if behaviour is None else list(_puppets(world, behaviour))
    outcome, began_at = Outcome(world, judge, watcher, honest), world.clock.now
    world.run_steps(STEPS, LIMIT_S)
    outcome.steps, outcome.rate = world.database.step, world.database.step / (world.clock.now - began_at)
    outcome.finished = world.run(lambda: world.tally.finished, END_S)
    world.wait(5.0)
    outcome.account = sum((peer.puppet.account for peer in puppets), Counter())
    outcome.account += Counter({f"note {kind}": count for kind, count in world.tally.notes.items()})
    return outcome


@cache
def rate_alone() -> float:
    outcome = run(None)
    assert outcome.steps == STEPS
    return outcome.rate


def _puppets(world: World, behaviour: Behaviour) -> "list[PuppetTrainer | PuppetRelay]":
    """Return as many puppets as the row says, all owned by one person. With "copied home", two puppets share a name."""
    person = name_of(world.seed, "puppet")[:6]
    names = [PeerId(person + name_of(world.seed, "machine", number)[6:]) for number in range(behaviour.machines)]
    names += names if behaviour.link == "copied home" else []
    puppets = [_puppet(world, peer, behaviour) for peer in names]
    for puppet in puppets:
        puppet.after(world.chance.random(), puppet.connect)
    return puppets


def _puppet(world: World, peer: PeerId, behaviour: Behaviour) -> "PuppetTrainer | PuppetRelay":
    if behaviour.role is not Role.TRAINER:
        relay = world.relays[peer] = PuppetRelay(world, peer, behaviour)
        if behaviour.role is Role.AUXILIARY:
            _reach(world, peer)
            _fetch(world, peer)
        world.peers[peer] = relay
        return relay
    trainer = world.trainers[peer] = PuppetTrainer(world, peer, behaviour)
    world.peers[peer] = trainer
    return trainer


def _reach(world: World, listener: PeerId) -> None:
    """Let all honest peers report a link to a member that listens, so that the member may average."""
    for peer in (*world.trainers.values(), *world.relays.values()):
        if peer.peer != listener and peer.session is not None:
            peer.say(m.Reaches(run=world.run_id, listeners=(listener,)))
    world.clock.after(REACHES_S, lambda: _reach(world, listener))


def _fetch(world: World, reducer: PeerId) -> None:
    """Let the relays have every span that a member has averaged, as the member reports it: the averages are not false.

    Virtual relays fetch nothing, and a run does not commit what only a member has.
    """
    round_ = world.host.state.round if world.host is not None else None
    spans = round_.plan.spans if round_ is not None and round_.plan is not None else ()
    for done in [round_.done[s.span] for s in spans if round_ and s.reducer == reducer and s.span in round_.done]:
        place: dict[str, Any] = {"run": done.run, "step": done.step, "fence": done.fence, "attempt": done.attempt}
        have = m.Have(**place, span=done.span, root=done.root, sum_squares=done.sum_squares)
        for relay in world.relays.values():
            if relay.peer != reducer and relay.session is not None:
                relay.say(have)
    world.clock.after(FETCH_S, lambda: _fetch(world, reducer))


def complaints(outcome: Outcome) -> list[str]:
    """Return what went wrong for honest peers. If the host raises an error, the test itself fails."""
    world, host = outcome.world, outcome.world.host
    found = [f"{outcome.steps} of {STEPS} steps were made"] if outcome.steps < STEPS else []
    if not outcome.finished:
        found.append("the run did not finish")
    if host is None or not host.alive or world.tally.restarts:
        found.append("the host ended")
    for peer in outcome.honest:
        if not peer.alive or peer.session is None:
            found.append(f"{peer.peer[:6]} is gone")
        elif host is not None and peer.peer not in host.state.members:
            found.append(f"{peer.peer[:6]} is no member any more")
    return found + _replicas(outcome) + _credit(outcome) + _updates(outcome) + _hashes(outcome) + _leases(outcome)


def _replicas(outcome: Outcome) -> list[str]:
    """Check that all honest replicas are at the head of the log, with the state that the log produces."""
    world = outcome.world
    right = world.database.index, state_digest(world.log_digest(world.database.index))
    trainers = [peer for peer in outcome.honest if isinstance(peer, Trainer)]
    said = {peer.peer: (peer.core.index, peer.core.digest) for peer in trainers}
    return [f"{peer[:6]} is at {at}, not at {right}" for peer, at in said.items() if at != right]


def _credit(outcome: Outcome) -> list[str]:
    names = [f"uncredited: {peer.peer[:6]}" for peer in outcome.honest]
    return [fault for fault in outcome.judge.faults if any(fault.startswith(name) for name in names)]


def _updates(outcome: Outcome) -> list[str]:
    """Check that updates contain honest gradients as they were offered, and that the curve shows the honest loss."""
    honest, found = {peer.peer for peer in outcome.honest}, []
    for record in outcome.world.database.records:
        found += [f"clipped: {part.peer[:6]}" for part in record.contributions if part.clipped and part.peer in honest]
        found += [f"loss {record.loss:.3g} at step {record.step}"] if not math.isclose(record.loss, NATS) else []
        found += (
            [f"averages of step {record.step} are too large"] if sum(s.sum_squares for s in record.spans) > 2 else []
        )
    return found


def _hashes(outcome: Outcome) -> list[str]:
    """Check that snapshots are admitted only under the hash that the honest peers report."""
    return [f"admitted: {said}" for said in outcome.watcher.admitted if set(said.sha256) == {"f"}]


def _leases(outcome: Outcome) -> list[str]:
    """Check that no machine leases the whole data set, and that honest work is lost only if a relay is hostile.

    A member that averages and lies cannot even put an honest machine in quarantine.
    """
    world, host = outcome.world, outcome.world.host
    held = host.state.leases.held_samples.values() if host is not None else ()
    most = MOST_BATCHES * world.recipe.target_batch
    found = [f"{samples} samples are leased to one machine" for samples in held if samples > most]
    names = {peer.peer for peer in outcome.honest}
    if sum(relay.role is Role.RELAY for relay in world.relays.values()) == SETTING.relays:
        found += [f"{peer[:6]} lost what it held" for peer in outcome.watcher.revoked if peer in names]
    if len(world.relays) > sum(relay.role is Role.RELAY for relay in world.relays.values()):
        found += [f"{peer[:6]} was penalised" for peer in names & outcome.watcher.penalised]
    return found
