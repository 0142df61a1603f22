"""Which host a socket follows in each run, and which hellos were not answered. Pure: time is passed in."""

from msgspec import Struct

UNANSWERED_S = 2.0  # a hello that is not answered by then is asked for again; each time twice as long, up to
LONGEST_S = 32.0

Hosts = dict[str, tuple[str, int]]  # channel and fence, by run


class Hello(Struct):
    """One that was forwarded. `at` in monotonic seconds."""

    at: float
    wait_s: float = UNANSWERED_S


class Following:
    """Hosts of the runs of one socket. Each method that finds somebody new says so: the peer is to say hello."""

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._hellos: dict[str, Hello] = {}

    def follow(self, run: str, channel: str, fence: int, now: float, *, again: bool = False) -> bool:
        """A host says that it has the run; an older one is not believed."""
        known = self.fences.get(run, -1)
        if fence < known or (fence == known and run in self.hosts and not again):
            return False
        self.hosts[run], self.fences[run], self._since[run] = channel, fence, now
        return True

    def unfollow(self, run: str) -> None:
        """It is not reached; if it lives, the next look finds it again."""
        self.hosts.pop(run, None)

    def said_hello(self, run: str, now: float) -> None:
        """It is on its way to the host."""
        before = self._hellos.get(run)
        wait_s = min(LONGEST_S, 2 * before.wait_s) if before is not None else UNANSWERED_S
        self._hellos[run] = Hello(now, wait_s)

    def answered(self, run: str) -> None:
        """The host said something."""
        self._hellos.pop(run, None)

    def look(self, hosts: Hosts, asked_at: float, now: float) -> list[str]:
        """Runs in which the peer is to say hello, by what the database said of the runs of this socket."""
        for run in [run for run in self.hosts if run not in hosts and self._since[run] < asked_at]:
            self.unfollow(run)
        new = [run for run, (channel, fence) in hosts.items() if self.follow(run, channel, fence, now)]
        overdue = [run for run, hello in self._hellos.items() if now - hello.at > hello.wait_s and run in self.hosts]
        return [*new, *(run for run in overdue if run not in new)]
