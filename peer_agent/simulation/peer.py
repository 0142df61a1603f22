"""What all virtual peers share: being alive, being frozen, and a session that can be lost with what was under way."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.messages import Message, Plan

if TYPE_CHECKING:
    from peer_agent.simulation.sockets import Socket
    from peer_agent.simulation.world import World

DIAL_S = 0.5  # until a site that does not answer is dialled again


def name_of(*parts: object) -> str:
    """32 hexadecimal digits for a thing of the simulation."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]


class Peer(ABC):
    """One virtual peer. `life` counts its processes: what an earlier one scheduled does nothing in a later one."""

    role: Role

    def __init__(self, world: "World", peer: PeerId, latency_s: float) -> None:
        self.world, self.peer, self.latency_s = world, peer, latency_s
        self.alive, self.frozen = True, False
        self.life = 0
        self.session: Socket | None = None
        self.fence = 0
        self.hung = False  # what it computes does not end; everything else of it goes on
        self.pace = 1.0  # of what it reduces: 0.1 takes ten times as long
        self.disk_full = False  # nothing can be written
        self._stalled: list[Callable[[], None]] = []  # what it would have computed meanwhile
        self._missed: list[Callable[[], None]] = []  # what happened while it was frozen

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, if this process still lives then; a frozen one does it when it wakes."""
        life = self.life

        def act() -> None:
            if not self.alive or self.life != life:
                return
            if self.frozen:
                self._missed.append(act)
            else:
                action()

        self.world.clock.after(delay_s, act)

    def compute(self, duration_s: float, action: Callable[[], None]) -> None:
        """Do something once it is computed: not while computing hangs."""
        self.after(duration_s, lambda: self._stalled.append(action) if self.hung else action())

    def hang(self) -> None:
        """A driver or a disk that never answers: the process lives, speaks, and computes nothing more."""
        self.hung = True

    def resume(self) -> None:
        """Go on after standing still."""
        self.hung = False
        stalled, self._stalled = self._stalled, []
        for action in stalled:
            action()

    def start(self) -> None:
        """A new process: it remembers nothing, and connects."""
        self.alive, self.frozen, self.hung, self.life = True, False, False, self.life + 1
        self._missed.clear()
        self._stalled.clear()
        self.fence = 0
        self.forget()
        self.connect()

    def kill(self) -> None:
        """End at once, as by kill -9."""
        if self.alive:
            self.alive = False
            self.disconnect()

    def freeze(self) -> None:
        """SIGSTOP, or a closed lid: the session stays, as far as the host can see."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: everything that was due happens now."""
        if not self.frozen:
            return
        self.frozen = False
        missed, self._missed = self._missed, []
        for act in missed:
            act()

    def connect(self) -> None:
        """Open a session, in which the site asks for a hello once it knows a host; dial again while it is down."""
        if self.alive and self.session is None and not self.world.open_session(self):
            self.after(DIAL_S + self.world.chance.random(), self.connect)

    def disconnect(self) -> None:
        """The session ends; what was under way in it is lost."""
        if self.session is not None:
            socket, self.session = self.session, None
            self.world.close_session(socket)

    def reconnect(self, delay_s: float) -> None:
        """Lose the session (Wi-Fi, a laptop's sleep) and open another later, with everything else kept."""
        self.disconnect()
        self.after(delay_s, self.connect)

    def say(self, message: m.TO_SITE) -> None:
        """Send to the host, in order."""
        if self.session is not None:
            self.session.up(message)

    def deliver(self, message: Message | Plan) -> None:
        """A message has arrived; a frozen process reads it when it wakes."""
        if self.frozen:
            self._missed.append(lambda: self._read(message))
        else:
            self._read(message)

    def _read(self, message: Message | Plan) -> None:
        """The first thing that a session brings asks for a hello; later ones are the peer's own to judge."""
        session = self.session
        if isinstance(message, m.Rehello) and session is not None and not session.greeted:
            session.greeted = True
            self.say(self.hello())
        else:
            self.receive(message)

    @abstractmethod
    def forget(self) -> None:
        """Lose everything that is kept between two starts."""

    @abstractmethod
    def hello(self) -> m.Hello:
        """All that this peer holds."""

    @abstractmethod
    def receive(self, message: Message | Plan) -> None:
        """React to the host."""

    def new_accumulator(self) -> AccumulatorId:
        """An identifier that no accumulator had before."""
        self.world.names += 1
        return AccumulatorId(name_of(self.world.seed, "accumulator", self.world.names))
