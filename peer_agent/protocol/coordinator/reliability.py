"""Judge a machine's reliability in a run by what it delivers, never by what it claims.

The record of a machine outlives its session. It says how fast the machine is and whether a round can count on it: a
machine on probation is not counted on until it delivers a unit, and a machine in quarantine takes part in no round.
Times are seconds on the coordinator's clock.
"""

from enum import StrEnum
from statistics import median

from msgspec import Struct, field

from peer_agent.protocol.coordinator.events import Sketched
from peer_agent.protocol.timing import DELIVERIES, FASTEST_S, LONGEST_QUARANTINE_S, QUARANTINES


class Stopwatch(Struct):
    """Seconds in which a machine could have delivered something, with pauses."""

    elapsed_s: float = 0.0  # before `since_s`
    since_s: float | None = None  # when it was started; None while it is paused

    @property
    def is_running(self) -> bool:
        return self.since_s is not None

    def start(self, now: float) -> None:
        if self.since_s is None:
            self.since_s = now

    def pause(self, now: float) -> None:
        if self.since_s is not None:
            self.elapsed_s, self.since_s = self.read(now), None

    def reset(self, now: float) -> None:
        """Set the seconds to 0. A running stopwatch goes on."""
        self.elapsed_s, self.since_s = 0.0, now if self.is_running else None

    def read(self, now: float) -> float:
        return self.elapsed_s + (now - self.since_s if self.since_s is not None else 0.0)


class Quarantine(Struct):
    """A circuit breaker: while it is open, the machine takes part in no round. Further failures keep it open longer.

    It is open up to the round `until_round` and until the time `until_s`.
    """

    level: int = 0  # failures, less good work since then
    until_round: int = 0
    until_s: float = 0.0

    def open(self, rounds: int, now: float, *, level: int) -> None:
        """Open the quarantine for as long as this many failures require. `rounds`: the number of the last round."""
        more_rounds, seconds = QUARANTINES[min(level, len(QUARANTINES)) - 1]
        self.until_round = max(self.until_round, rounds + more_rounds)
        self.until_s = max(self.until_s, now + seconds)

    def fail(self, rounds: int, now: float) -> None:
        """Record a failure, and open the quarantine for longer than after the last one."""
        self.level += 1
        self.open(rounds, now, level=self.level)

    def succeed(self) -> None:
        """Record that an update contains the machine's work."""
        self.level = max(0, self.level - 1)

    def is_open(self, number: int, now: float) -> bool:
        """Return True if the machine takes no part in the round with this number."""
        return number <= self.until_round or now < self.until_s


class Failure(StrEnum):
    """A way in which a machine let a round down."""

    LATE = "late"  # its gradient came too late
    MISSED = "missed"  # it made no offer, or stopped sending
    REFUSED = "refused"  # its work was refused
    FAILED = "failed"  # it kept a round from ending
    FALSE = "false"  # its averages or gradients have been proven false


SAYS = {
    Failure.LATE: "The gradient came too late. One round of quarantine, however often, and probation.",
    Failure.MISSED: "The machine made no offer, offered less than it had reported, or stopped sending. Quarantine and "
    "probation. If it stops sending a second time before an update has its work, that work returns to the pool.",
    Failure.REFUSED: "The machine's work was refused. Quarantine; its work is returned to the pool.",
    Failure.FAILED: "The machine kept a round from ending, or disputed with others twice. In quarantine it averages "
    "nothing, but contributes.",
    Failure.FALSE: "The machine's averages, or the gradients that it contributed, have been proven false. The longest "
    "quarantine.",
}


class Reliability(Struct):
    """A machine's record in this run."""

    unit: Stopwatch = field(default_factory=Stopwatch)  # time for work since the last delivery
    seconds: list[float] = field(default_factory=list)  # seconds per sample in each recent delivery
    rate: float = 0.0  # samples per second, from the median of `seconds`; 0 until the first delivery
    is_silent: bool = False  # the machine has delivered nothing for too long
    probation: bool = False  # the machine is not counted on until it delivers a unit
    asked: int = 0  # hellos requested since the last delivery
    misses: Quarantine = field(default_factory=Quarantine)  # from contributing, for late and missing gradients
    refusals: Quarantine = field(default_factory=Quarantine)  # from contributing, for refused work
    reduce: Quarantine = field(default_factory=Quarantine)  # from averaging, for averages that kept a round from ending
    failed_at: float = 0.0  # time of the last failure
    was_late: bool = False  # in its last round, its gradient was arriving, but too late
    proven: int = 0  # most samples in any of its contributions, less a tenth per contribution since then
    disputed_by: frozenset[str] = frozenset()  # persons whose reducers refused its gradient since it was last used
    disputes_with: frozenset[str] = frozenset()  # persons whose gradients it alone refused
    audits_passed: int = 0  # since its last proven false contribution
    checked_index: int = 0  # its work up to this log entry counts as checked
    checked_samples: int = 0  # most samples in a contribution that has passed an audit
    in_doubt: bool = False  # all its contributions are audited
    incomparable: int = 0  # contributions in a row that no auditor could compute again
    is_proven_false: bool = False  # since audits proved its work false, until an update includes its work again
    doubted_in: int = 0  # the round in which the doubt began
    unclear: int = 0  # unclear audits since the last one that it passed
    site_asked: bool = False  # since it is in doubt, the site was asked to compute its work again
    # since it is in doubt, persons whose machines found other gradients, with the log entry of the last such one
    accused_by: dict[str, int] = field(default_factory=dict)
    cleared_by: frozenset[str] = frozenset()  # since it is in doubt, persons whose machines found the same gradients
    # since it is in doubt, the contributions for the site to compute again, by log entry
    evidence: dict[int, Sketched] = field(default_factory=dict)
    # persons whose accusations others dismissed, with the log entries, until the site knows who was right
    overruled: frozenset[tuple[str, int]] = frozenset()
    judged_index: int = 0  # false contributions up to this log entry have had their consequences
    faults: int = 0  # times that the site found some of its contributions false and others true
    notice: str = ""  # the code of a notice that its owner has not been sent, because it was away
    audited_in: int = -(2**31)  # the last round in which it was asked to audit another machine
    skipped_updates: int = 0  # updates in a row without it, because its link would have slowed the others

    def deliver(self, samples: int, now: float) -> None:
        """Record a delivered unit. It counts towards the rate only if the stopwatch was running."""
        if self.unit.since_s is not None:
            self.seconds = [*self.seconds[1 - DELIVERIES :], max(now - self.unit.since_s, FASTEST_S) / samples]
            self.rate = 1 / median(self.seconds)
        self.unit.reset(now)
        self.asked, self.is_silent, self.probation = 0, False, False

    def fail(self, kind: Failure, rounds: int, now: float, *, is_coming: bool = False) -> None:
        """Record a failure, and open a quarantine. `is_coming`: the gradient was still arriving.

        A delivery after a failure is only a claim. If the machine fails again before an update includes its work, the
        quarantine is longer, except after LATE.
        """
        self.failed_at = now
        match kind:
            case Failure.LATE:
                self.probation, self.was_late = True, is_coming
                self.misses.open(rounds, now, level=1)
            case Failure.MISSED:
                self.probation, self.proven = True, 0
                self.misses.fail(rounds, now)
            case Failure.REFUSED:
                self.refusals.fail(rounds, now)
                self.proven = 0
            case Failure.FAILED:
                self.reduce.fail(rounds, now)
            case Failure.FALSE:
                self.is_proven_false, self.checked_samples = True, 0
                for duty in (self.refusals, self.reduce):
                    duty.level = max(duty.level, len(QUARANTINES) - 1)
                    duty.fail(rounds, now)
                self.proven = 0

    def included(self, samples: int) -> None:
        """Record that an update includes `samples` of the machine's samples."""
        self.refusals.succeed()
        self.is_proven_false = False
        self.misses.level, self.was_late = 0, False
        self.proven = max(samples, self.proven * 9 // 10)
        self.disputed_by = frozenset()

    def in_quarantine(self, number: int, now: float) -> bool:
        """Return True if the machine contributes nothing to this round, unless quarantines are overridden."""
        is_open = self.misses.is_open(number, now) or self.refusals.is_open(number, now)
        return is_open and now - self.failed_at < LONGEST_QUARANTINE_S

    def may_not_reduce(self, number: int, now: float) -> bool:
        """Return True if the machine averages nothing in this round if others can."""
        return self.reduce.is_open(number, now) and now - self.failed_at < LONGEST_QUARANTINE_S

    def unit_s(self, micro_batch: int) -> float:
        """Return how many seconds the machine usually takes per unit, or 0 before its first delivery."""
        return micro_batch / self.rate if self.rate else 0.0
