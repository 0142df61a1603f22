"""The virtual host: carries events to `advance` and its commands to the peers and the database, as the site does."""

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import advance as coordinator
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import GRACE_ROUNDS, TICK_S
from peer_agent.protocol.coordinator.leases import restored
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Shard
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.simulation.peer import Peer

if TYPE_CHECKING:
    from peer_agent.simulation.world import World

DATABASE_S = 0.02


class Host:
    """One process that claimed the run. Its state is rebuilt from the database; sessions are numbered."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.alive, self.frozen = True, False
        self.sessions: dict[PeerId, int] = {}
        self.state = state_of(world)
        self._missed: list[Callable[[], None]] = []
        self._tick()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, if this process still lives then; a frozen one does it when it wakes."""

        def act() -> None:
            if self.frozen:
                self._missed.append(act)
            elif self.alive:
                action()

        self.world.clock.after(delay_s, act)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: the clock has jumped, and everything that waited comes at once."""
        self.frozen = False
        missed, self._missed = self._missed, []
        for act in missed:
            act()

    def _tick(self) -> None:
        self.take(e.Ticked())
        self.after(TICK_S, self._tick)

    def receive(self, peer: Peer, session: int, message: m.TO_SITE) -> None:
        """A message of a session; the first one of it is the hello."""
        known = self.sessions.get(peer.peer)
        if known == session:
            self.take(e.Received(peer.peer, message))
        elif isinstance(message, m.Hello) and (
            known is None or known < session
        ):  # the end of an old one may come later
            self.sessions[peer.peer] = session
            self.take(e.Joined(peer.peer, self.world.person_of(peer.peer), peer.peer, peer.role, message))

    def lose(self, peer: PeerId, session: int, *, banned: bool = False) -> None:
        """A socket was found closed."""
        if self.sessions.get(peer) == session:
            del self.sessions[peer]
            self.take(e.Lost(peer, banned))

    def take(self, event: e.Event) -> None:
        """One event, and then what it commands, in order."""
        if not self.alive:
            return
        now = self.world.clock.now
        for observer in self.world.observers:
            observer.before(self, event, now)
        commands = coordinator.advance(self.state, event, now, self.world.seed)
        for observer in self.world.observers:
            observer.after(self, event, commands, now)
        for command in commands:
            self._carry(command)

    def _carry(self, command: e.Command) -> None:
        match command:
            case e.Send() | e.Announce():
                message = command.message if isinstance(command, e.Send) else command.plan
                for peer in command.peers:
                    self.world.to_peer(self, peer, message)
            case e.Persist():
                self.world.clock.after(DATABASE_S, lambda: self._persist(command))
            case e.Reserve():
                self.after(DATABASE_S, lambda: self._reserve(command))
            case e.Resend():
                self._resend(command)
            case e.Abdicate():
                self.world.restart_host()
            case e.Note():
                self.world.tally.note(command)
            case e.Finish():
                self.world.tally.finished = True
            case e.Agreed() | e.Waiting() | e.Replay():  # its relays hold no bytes to replay
                pass
            case _:
                assert_never(command)

    def _resend(self, command: e.Resend) -> None:
        for sealed in self.world.database.log[command.first - 1 :]:
            message = m.Commit(run=self.state.run, fence=self.state.fence, record=sealed)
            self.world.to_peer(self, command.peer, message)

    def _persist(self, command: e.Persist) -> None:
        """What was sent to the database happens there, even if its sender dies meanwhile (rule 4)."""
        outcome, sealed = self.world.database.persist(command.record)
        for observer in self.world.observers:
            observer.persisted(self, command, outcome)
        self.after(DATABASE_S, lambda: self.take(e.Persisted(outcome, sealed)))

    def _reserve(self, command: e.Reserve) -> None:
        self.world.database.reserve(command.marks)
        self.after(DATABASE_S, lambda: self.take(e.Reserved(command.marks)))


def state_of(world: "World") -> RunState:
    """A run as a host finds it: head, marks and settled units from the database, and a fence of its own."""
    database, recipe = world.database, world.recipe
    marks = [e.Mark(epoch, shard, mark) for (epoch, shard), mark in sorted(database.marks.items())]
    fence = database.claim()
    return RunState(
        run=world.run_id,
        slug="simulated",
        title="Simulated",
        fence=fence,
        recipe=recipe,
        recipe_bytes=encode_recipe(recipe),
        elements=world.grid.elements,
        shards=tuple(Shard("0" * 64, size * recipe.model.context) for size in world.shards),
        site_key=public_bytes(database.key),
        snapshot=database.snapshot,
        leases=restored(world.shards, recipe.micro_batch, marks, database.settled()),
        index=database.index,
        step=database.step,
        digest=database.digest,
        sealed=database.log[-1] if database.log else None,
        goal=world.goal,
        started=database.step > 0,
        orphans_until=database.step + GRACE_ROUNDS if fence > 1 else 0,
    )
