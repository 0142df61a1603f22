"""Messages that a trainer sends to the site: hellos, reports, offers, heartbeats and reachable listeners."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.trainer.events import Action, Say
from peer_agent.protocol.trainer.state import ROUND, Phase, TrainerState
from peer_agent.protocol.trainer.transitions import Cause, ignores, move

REPORT_S = 0.1  # minimum seconds between reports
HEARTBEAT_S = 2.0  # maximum seconds without a message
HELLO_S = 5.0  # seconds before an unanswered hello is repeated, with backoff
LONGEST_HELLO_S = 60.0
REACHES_S = 30.0  # seconds between reports of reachable listeners, as one may be lost


def say(state: TrainerState, message: m.Message) -> list[Action]:
    """Send a message to the site, and note the time."""
    state.spoke_at = state.now
    return [Say(message)]


def hello(state: TrainerState) -> list[Action]:
    state.hello_due = False
    state.unanswered += 1
    state.hello_at = state.now
    return [*say(state, hello_of(state)), *reaches(state)]


def reaches(state: TrainerState) -> list[Action]:
    """Report the listeners that this trainer has links to. Even an empty report shows that it supports probes."""
    state.reaches_at = state.now
    return say(state, m.Reaches(run=state.run, listeners=state.reached))


def take_reached(state: TrainerState, listeners: tuple[PeerId, ...]) -> list[Action]:
    """Tell the site which listeners this trainer's data links reach, if that has changed. The list may be empty."""
    if listeners == state.reached:
        return []
    state.reached, state.reaches_at = listeners, state.now
    return say(state, m.Reaches(run=state.run, listeners=listeners))


def hello_of(state: TrainerState) -> m.Hello:
    """Return a hello with everything that the trainer holds, so that repeating the hello changes nothing."""
    return m.Hello(
        run=state.run,
        accumulator=state.accumulator,
        done=state.done,
        undone=state.undone,
        carried=state.carried,
        step=state.step,
        digest=state.digest,
        fence=state.fence,
        in_doubt=_in_doubt(state),
        url=state.url,
        reduces=bool(state.url),
        keeps_log=bool(state.url),
        fingerprint=state.fingerprint,
        log_index=state.index,
        reserve_percent=state.reserve_percent,
    )


def _in_doubt(state: TrainerState) -> tuple[m.InDoubt, ...]:
    """Return the attempt whose outcome is unknown to this trainer (rule 4)."""
    round_ = state.round
    if round_ is None or state.phase not in ROUND:
        return ()
    return (m.InDoubt(round_.cut.step, round_.cut.fence, round_.attempt),)


def heard(state: TrainerState) -> m.Heard | None:
    """Return how far this trainer has heard of the open round."""
    round_ = state.round
    if round_ is None or state.phase not in ROUND:
        return None
    cut = round_.cut
    return m.Heard(cut.step, cut.fence, round_.attempt, round_.plan is not None, int(round_.is_dropped))


def report(state: TrainerState, *, at_once: bool = False) -> list[Action]:
    """Report total progress, at most every `REPORT_S` seconds unless `at_once` or the quota is used up.

    The coordinator decides from the reports when to cut. More frequent reports would burden the link.
    """
    if not state.has_state or state.hello_due:
        return []  # a host must not check work before the next hello, which states the leases
    if not at_once and not state.is_full and state.now - state.reported_at < REPORT_S:
        return []
    state.reported_at = state.now
    message = m.Report(
        run=state.run,
        accumulator=state.accumulator,
        done=state.done,
        loss_tokens=state.loss_tokens,
        loss_sum=state.loss_sum,
        step=state.step,
        index=state.index,
        digest=state.digest,
        undone=len(state.undone),
        heard=heard(state),
    )
    return say(state, message)


def gap(state: TrainerState) -> list[Action]:
    """Tell the site that the record after this replica's last entry is missing, once for each entry.

    Heartbeats repeat this report.
    """
    if state.gap_told == state.index:
        return []
    state.gap_told = state.index
    return report(state, at_once=True)


def tick(state: TrainerState) -> list[Action]:
    """Send any messages that are due: an unanswered hello, reachable listeners, a report or a heartbeat."""
    if ignores(state, Cause.SPOKE):
        return []
    move(state, Cause.SPOKE, state.phase)
    if state.unanswered and state.now - state.hello_at >= max(HELLO_S, state.hello_wait_s):
        state.unanswered = 0
        state.hello_wait_s = min(2 * max(HELLO_S, state.hello_wait_s), LONGEST_HELLO_S)
        return hello(state)
    again = reaches(state) if state.reached and state.now - state.reaches_at >= REACHES_S else []
    if again or state.now - state.spoke_at < HEARTBEAT_S:
        return again
    return report(state, at_once=True) or say(state, m.Heartbeat(run=state.run, index=state.index, heard=heard(state)))


def offer(state: TrainerState) -> list[Action]:
    """Send the open offer, if there is one. It is also resent after a greeting, because it may have been lost."""
    if state.phase is Phase.OFFER and state.round is not None and state.round.offer is not None:
        return say(state, state.round.offer)
    return []
