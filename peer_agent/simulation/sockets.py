"""The site's sockets, and the layer between them and the host of the run: letters are lost, doubled and late.

A socket is what `coordination.sockets.consumer` is to a real peer. It knows the host by announcements and by the
database; both may be old. Within a socket order is kept, as TCP and the layer do; nobody is told of a lost letter.
"""

from typing import TYPE_CHECKING

from peer_agent.protocol import messages as m
from peer_agent.protocol.messages import Message, Plan
from peer_agent.simulation.faults import Kind

if TYPE_CHECKING:
    from peer_agent.simulation.host import Host
    from peer_agent.simulation.peer import Peer
    from peer_agent.simulation.world import World

LOOK_S = 2.0  # while nothing answers, the run's host is looked up so often
NOTICE_S = 0.3  # until the site sees that a socket is closed
LATE_S = 15.0  # at most, for a letter that is held up; all behind it wait
UP: tuple[Kind, Kind, Kind] = ("lost up", "twice up", "late up")
DOWN: tuple[Kind, Kind, Kind] = ("lost down", "twice down", "late down")


class Socket:
    """One peer's link to the site. `number`: later ones are higher."""

    def __init__(self, world: "World", peer: "Peer", number: int) -> None:
        self.world, self.peer, self.number = world, peer, number
        self.host: Host | None = None
        self.fence = -1
        self.heard_at = world.clock.now
        self.answered = False  # by the host that it knows
        self.greeted = False  # the peer has said hello by it
        self._free_at = {"up": 0.0, "down": 0.0}  # when the last letter each way arrives

    # --- which host

    def look_up(self) -> None:
        """Ask the database who drives the run. Whoever has not answered us gets another hello."""
        found = self.world.database.host_of_run(self.world.clock.now)
        if found is None:
            return
        host, fence = found
        if fence > self.fence:
            self.follow(host, fence)
        elif not self.answered:
            self._say_rehello()

    def follow(self, host: "Host", fence: int) -> None:
        """A run has a (new) host: the peer says hello to it."""
        if fence > self.fence:
            self.host, self.fence = host, fence
            self._say_rehello()

    def _say_rehello(self) -> None:
        self.answered, self.heard_at = False, self.world.clock.now
        message = m.Rehello(run=self.world.run_id, fence=self.fence)
        self.world.clock.after(self._delay("down"), lambda: self._arrive(message))

    @property
    def is_forsaken(self) -> bool:
        """Whether nothing has come from the host for so long that it is looked up."""
        return self.world.clock.now - self.heard_at >= LOOK_S

    # --- letters

    def up(self, message: m.TO_SITE) -> None:
        """From the peer to the host that this socket knows."""
        host = self.host
        if host is None:
            return
        for delay_s in self._ways("up", UP, type(message).__name__):
            host.hear(delay_s, lambda: host.receive(self, message))

    def down(self, message: Message | Plan) -> None:
        """From a host to the peer."""
        for delay_s in self._ways("down", DOWN, type(message).__name__):
            self.world.clock.after(delay_s, lambda: self._answer(message))

    def _answer(self, message: Message | Plan) -> None:
        self.answered, self.heard_at = True, self.world.clock.now
        self._arrive(message)

    def _arrive(self, message: Message | Plan) -> None:
        if self.peer.alive and self.peer.session is self:
            self.peer.deliver(message)

    def _ways(self, way: str, kinds: tuple[Kind, Kind, Kind], of: str) -> list[float]:
        """The seconds until each copy of a letter arrives: usually one, none where it is lost."""
        world = self.world
        lost, twice, late = kinds
        if world.clock.now < world.layer_back_at or world.strikes(lost, self.peer.peer, of):
            return []
        held_s = LATE_S * world.faults.chance.random() if world.strikes(late, self.peer.peer, of) else 0.0
        delay_s = self._delay(way, held_s)
        return [delay_s, delay_s] if world.strikes(twice, self.peer.peer, of) else [delay_s]

    def _delay(self, way: str, held_s: float = 0.0) -> float:
        """Latency with some jitter; what was sent first arrives first."""
        now = self.world.clock.now
        delay_s = held_s + self.peer.latency_s * self.world.chance.uniform(0.8, 1.5)
        self._free_at[way] = max(now + delay_s, self._free_at[way])
        return self._free_at[way] - now

    # --- its end

    def close(self) -> None:
        """The peer's end is closed. The site sees it a little later and tells the host it knows, once."""
        host = self.host
        if host is None or self.world.strikes("lost notice", self.peer.peer):
            return
        host.hear(self._delay("up", NOTICE_S), lambda: host.lose(self))
