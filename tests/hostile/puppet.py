"""The puppet in virtual time: a simulated peer that alters its messages to suit its behaviour and sends them as
bytes."""

from collections import Counter
from collections.abc import Iterable
from random import Random

from coordination.sockets.limits import Allowances
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role, public_bytes
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.session import Failed, Identity, Link, MessageReceived, Session, SessionPhase, Side
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.wire import encode
from peer_agent.simulation.relay import Relay
from peer_agent.simulation.site import Socket, Surroundings
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import World
from tests.hostile.behaviours import TICK_S, Behaviour, Memory, Word
from tests.protocol.identities import SITE_KEY

BACK_S = 1.0  # the puppet ignores the site's hints and reconnects after this many seconds
USUAL_S = 4.0  # samples per second
AWAY_S = 1.0  # seconds connected and seconds away, with "comes and goes"


class Gate:
    """The production rate budget and session, which check one machine's bytes before they reach its run's host."""

    def __init__(self, peer: PeerId, world: Surroundings, role: Role) -> None:
        self.allowance = Allowances().of(peer, world.run_id, role, world.clock.now)
        self.identity = Identity("site", SITE_KEY, None, public_bytes(SITE_KEY))
        self.open()

    def open(self) -> None:
        """Open a new socket on which the peer has already proved its identity."""
        self.session = Session(Side.LISTENING, Link.CONTROL, self.identity, nonce=bytes(32), server="site", version="")
        self.session.phase = SessionPhase.OPEN

    def take(self, data: bytes, now: float) -> m.TO_SITE | Fault:
        """Return the message that one of the site's sockets would forward to the host, or the fault if the socket
        would close.
        """
        if not self.allowance.spend(len(data), now):
            return Fault.of("E370", limit=self.allowance.budget)
        event = self.session.receive(data, now)
        if isinstance(event, Failed):
            return event.fault
        assert isinstance(event, MessageReceived)
        assert isinstance(event.body, m.TO_SITE)
        return event.body


class Puppet:
    """The part common to both kinds of puppet. `account` counts messages sent, refused and received."""

    def __init__(self, peer: "Trainer | Relay", behaviour: Behaviour) -> None:
        self.peer, self.behaviour, self.world = peer, behaviour, peer.world
        self.gate = Gate(peer.peer, peer.world, behaviour.role)
        self.account: Counter[str] = Counter()
        chance = Random(f"puppet {peer.peer}")
        self.memory = Memory(run=peer.world.run_id, me=peer.peer, chance=chance, core=peer.core)
        self.old: Socket | None = None  # a link that the puppet left open
        peer.after(TICK_S, self._tick)
        if behaviour.link != "steady":
            peer.after(AWAY_S, self._relink)

    # --- what it says

    def says(self, message: m.TO_SITE) -> None:
        words = list(self.behaviour.says(self._remember(), message))
        self.account["changed"] += words != [message]
        self._post_all(words)

    def hears(self, message: m.Message | m.Plan) -> None:
        kind = f"{type(message).__name__} {message.code}" if isinstance(message, m.Notice) else type(message).__name__
        self.account[f"told {kind}"] += 1
        self._remember().hear(message)
        self._post_all(self.behaviour.answers(self.memory, message))

    def _tick(self) -> None:
        self.memory.ticks += 1
        self._post_all(self.behaviour.adds(self._remember()))
        self.peer.after(TICK_S, self._tick)

    def _remember(self) -> Memory:
        """Update what the puppet knows: its core, the public records, and the roots of other relays' spans."""
        memory, host = self.memory, self.world.host
        memory.core = self.peer.core
        round_ = host.state.round if host is not None else None
        memory.roots = {span: done.root for span, done in round_.done.items()} if round_ is not None else {}
        if records := self.world.database.records:
            memory.others.extend(part.accumulator for part in records[-1].contributions if part.peer != memory.me)
        return memory

    def _post_all(self, words: Iterable[Word]) -> None:
        for word in words:
            if not self._post(word):
                return

    def _post(self, word: Word) -> bool:
        """Send one message as bytes. Return False if the site closes the link because of it."""
        session = self.peer.session
        if session is None:
            return False
        taken = self.gate.take(word if isinstance(word, bytes) else encode(word), self.world.clock.now)
        if isinstance(taken, Fault):
            self.account[f"refused {taken.code}"] += 1
            self.gate.open()
            self.peer.reconnect(BACK_S)
            return False
        self.account[f"arrived {type(taken).__name__}"] += 1
        session.up(taken)
        return True

    # --- its links

    def _relink(self) -> None:
        peer = self.peer
        peer.after(2 * AWAY_S, self._relink)
        if self.behaviour.link == "two sockets":
            self._speak_by_the_old_one()
        elif peer.session is not None:
            self.account["went"] += 1
            peer.reconnect(AWAY_S if self.behaviour.link == "comes and goes" else 0.0)

    def _speak_by_the_old_one(self) -> None:
        """Open a second socket while keeping the first one open. The puppet later says goodbye on the first."""
        peer = self.peer
        if self.old is not None:
            self.account["said by an old socket"] += 1
            self.old.up(m.Leave(run=self.world.run_id))
            self.world.close_session(self.old)
        self.old, peer.session = peer.session, None
        peer.connect()


class PuppetTrainer(Trainer):
    def __init__(self, world: World, peer: PeerId, behaviour: Behaviour) -> None:
        pace = world.grid.chunks if behaviour.chunks_per_s is None else behaviour.chunks_per_s
        super().__init__(world, peer, samples_per_s=USUAL_S, latency_s=0.03, chunks_per_s=pace)
        self.damaged = behaviour.damaged
        self.units_left = behaviour.computes
        self.puppet = Puppet(self, behaviour)

    def say(self, message: m.TO_SITE) -> None:
        self.puppet.says(message)

    def receive(self, message: m.Message | m.Plan) -> None:
        super().receive(message)
        self.puppet.hears(message)

    def _finish(self, action: e.Compute, base: int) -> None:
        if self.units_left is not None:
            if self.units_left <= 0:
                return  # this behaviour hangs
            self.units_left -= 1
        super()._finish(action, base)


class PuppetRelay(Relay):
    def __init__(self, world: World, peer: PeerId, behaviour: Behaviour) -> None:
        super().__init__(world, peer, world.trainers, latency_s=0.01)
        self.role = behaviour.role
        self.puppet = Puppet(self, behaviour)

    def say(self, message: m.TO_SITE) -> None:
        self.puppet.says(message)

    def receive(self, message: m.Message | m.Plan) -> None:
        super().receive(message)
        self.puppet.hears(message)
