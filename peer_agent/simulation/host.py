"""The virtual host: carries events to `advance` and its commands to the peers and the database, as the site does."""

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import advance as coordinator
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.facts import StoredFacts, restored
from peer_agent.protocol.coordinator.state import RECORDS_WALKED, RunState
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Shard
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.simulation.database import RENEW_S
from peer_agent.simulation.trainer import state_digest

if TYPE_CHECKING:
    from peer_agent.simulation.sockets import Socket
    from peer_agent.simulation.world import World

DATABASE_S = 0.02
REPLAY_S = 1.0
AGAIN_S = 1.0  # until a database that does not answer is asked again
CONTEXT = 16  # tokens in a sample
CAPACITY = 10_000  # letters that a channel holds while nobody reads it; more are dropped


class Host:
    """One process that claimed the run. Its state is rebuilt from the database; it knows sockets by their letters."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.alive, self.frozen = True, False
        self.sockets: dict[PeerId, Socket] = {}
        self.state = state_of(world, world.database.claim(self, world.clock.now))
        self.renewed_at = world.clock.now
        self._missed: list[Callable[[], None]] = []
        self._letters = 0  # of these, that lie in its channel
        self._tick()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, if this process still lives then; a frozen one does it when it wakes."""

        def act() -> None:
            if self.frozen:
                self._missed.append(act)
            elif self.alive:
                action()

        self.world.clock.after(delay_s, act)

    def hear(self, delay_s: float, action: Callable[[], None]) -> None:
        """The same with a letter, which the channel of a frozen process drops once it is full."""

        def act() -> None:
            if not self.frozen:
                if self.alive:
                    action()
            elif self._letters < CAPACITY:
                self._letters += 1
                self._missed.append(act)

        self.world.clock.after(delay_s, act)

    def freeze(self) -> None:
        """Stand still, as by SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: the clock has jumped, and everything that waited comes at once."""
        self.frozen = False
        missed, self._missed, self._letters = self._missed, [], 0
        for act in missed:
            act()

    def _tick(self) -> None:
        self.handle(e.Ticked())
        self._look()
        now = self.world.clock.now
        if now - self.renewed_at >= RENEW_S:
            self.renewed_at = now
            if not self.world.database.renew(self.state.fence, now):
                self._stand_back()
        self.after(TICK_S, self._tick)

    def _look(self) -> None:
        """At what the organizer wants that may be said more than once."""
        if self.alive and self.world.database.back_to is not None:
            self.handle(e.Directed(self.world.goal, back_to=self.world.database.back_to))

    def _stand_back(self) -> None:
        """Another host has the run, or nobody is to have it: this one ends, its sockets do not."""
        self.alive = False
        self.world.replace_host(self)

    # --- letters

    def receive(self, socket: "Socket", message: m.TO_SITE) -> None:
        """A letter of a peer. The newest socket that said hello is its own; of a stranger the one that it speaks by."""
        peer = socket.peer
        known = self.sockets.get(peer.peer)
        if isinstance(message, m.Hello):
            if known is None or known.number <= socket.number:
                self.sockets[peer.peer] = socket
                self.handle(e.Joined(peer.peer, self.world.person_of(peer.peer), peer.peer, peer.role, message))
            return
        if known is None or (known is not socket and peer.peer not in self.state.members):
            known = self.sockets[peer.peer] = socket
        if known is socket:
            self.handle(e.Received(peer.peer, message))

    def lose(self, socket: "Socket", *, banned: bool = False) -> None:
        """A socket was found closed."""
        peer = socket.peer.peer
        if self.sockets.get(peer) is socket:
            del self.sockets[peer]
            self.handle(e.Lost(peer, banned))

    def say(self, peer: PeerId, message: m.Message | m.Plan) -> None:
        """By the socket that is known of this peer; nobody hears what is said to another."""
        socket = self.sockets.get(peer)
        if socket is not None:
            socket.down(message)

    # --- events and commands

    def handle(self, event: e.Event) -> None:
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
            case e.Send():
                self._send(command.peers, command.message)
            case e.Announce():
                self._send((*command.keepers, *command.peers), command.plan)
            case e.Persist():
                self.world.clock.after(DATABASE_S, lambda: self._persist(command))
            case e.Reserve():
                self.after(DATABASE_S, lambda: self._reserve(command))
            case e.LeftOut():
                self.after(DATABASE_S, lambda: self._leave_out(command))
            case e.Resend():
                self.after(DATABASE_S, lambda: self._resend(command))
            case e.Abdicate():
                self._stand_back()
            case e.Note() | e.Finish():
                self.world.tally.take(command)
            case e.Replay():
                self.after(REPLAY_S, lambda: self._replayed(command))
            case e.Agreed() | e.Waiting() | e.Elected() | e.Admitted():
                pass
            case _:
                assert_never(command)

    def _send(self, peers: tuple[PeerId, ...], message: m.Message | m.Plan) -> None:
        for peer in peers:
            self.say(peer, message)

    def _resend(self, command: e.Resend) -> None:
        page = self.world.database.log[command.first - 1 : command.first - 1 + command.count]
        for entry in page:
            self.say(command.peer, m.Commit(run=self.state.run, fence=self.state.fence, record=entry.head))
        self.handle(e.Paged(command.peer, command.first + len(page) - 1))

    def _persist(self, command: e.Persist) -> None:
        """What was sent to the database happens there, even if its sender dies meanwhile (rule 4)."""
        database, now = self.world.database, self.world.clock.now
        is_there, at = database.answers(now), database.index
        outcome, sealed = database.persist(command.record, now)
        if database.index > at:
            self.world.committed()
        for observer in self.world.observers:
            observer.persisted(self, command, outcome)
        self.after(DATABASE_S if is_there else AGAIN_S, lambda: self.handle(e.Persisted(outcome, sealed)))

    def _replayed(self, command: e.Replay) -> None:
        """What the log gives. The state itself is not handed in: no relay holds bytes here."""
        digest = state_digest(self.world.log_digest(command.index))
        self.handle(e.Replayed(command.index, command.step, digest))

    def _reserve(self, command: e.Reserve) -> None:
        database, now = self.world.database, self.world.clock.now
        if not database.answers(now):
            self.after(AGAIN_S, lambda: self._reserve(command))
        elif database.fence != self.state.fence:
            self._stand_back()
        else:
            database.reserve(command.marks)
            self.after(DATABASE_S, lambda: self.handle(e.Reserved(command.marks)))

    def _leave_out(self, command: e.LeftOut) -> None:
        if self.world.database.fence == self.state.fence:
            self.world.database.left_out += command.units


def state_of(world: "World", fence: int) -> RunState:
    """A run as a host finds it, from nothing but rows: head, marks, coverage, snapshot and the last sealed record."""
    database, recipe = world.database, world.recipe
    facts = StoredFacts(
        run=world.run_id,
        slug="simulated",
        title="Simulated",
        fence=fence,
        recipe=recipe,
        recipe_bytes=encode_recipe(recipe),
        elements=world.grid.elements,
        shards=tuple(Shard("0" * 64, size * CONTEXT) for size in world.shards),
        sources=world.sources,
        site_key=public_bytes(database.key),
        snapshot=database.snapshot,
        verified=database.snapshot.index,
        rolled_back=database.rolled_back,
        marks=[e.Mark(epoch, shard, mark) for (epoch, shard), mark in database.marks.items()],
        settled=database.settled(),
        left_out=database.left_out,
        index=database.index,
        step=database.step,
        digest=database.digest,
        last=database.log[-RECORDS_WALKED:],
        goal=world.goal,
    )
    return restored(facts)
