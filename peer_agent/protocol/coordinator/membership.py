"""Run membership: hellos, lease checks, departures, and lost peers."""

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Joined, Note, Send
from peer_agent.protocol.coordinator.facts import carried_of
from peer_agent.protocol.coordinator.recovery import awaits_relay, tell_of_loss
from peer_agent.protocol.coordinator.reliability import Reliability
from peer_agent.protocol.coordinator.reports import resend
from peer_agent.protocol.coordinator.round.audits import tell
from peer_agent.protocol.coordinator.round.offers import revoke, revoked
from peer_agent.protocol.coordinator.round.reducing import withdraw, without
from peer_agent.protocol.coordinator.standing import standing
from peer_agent.protocol.coordinator.state import (
    KEEPING_ROLES,
    NO_ACCUMULATOR,
    STAND_INS,
    Departed,
    Member,
    RunState,
)
from peer_agent.protocol.coordinator.workers.counts import discount, keep_record, look_soon, recount
from peer_agent.protocol.coordinator.workers.settlement import depart, end_leases
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import ROUND_TRIP_S


def join(state: RunState, event: Joined) -> list[Command]:
    """Process a first or repeated hello. A hello lists all that the peer holds, so repeating it changes nothing."""
    hello, known = event.hello, state.members.get(event.peer)
    member = known or _arrive(state, event)
    member.heard_at, member.hello_asked_at = state.now, None
    if awaits_relay(state, member, hello):
        return []
    commands = tell_of_loss(state, member, hello) + _listen(state, member, hello)
    if member.trains:
        commands += _reconcile(state, member, hello)
        recount(state, member)
    if member.reliability.notice:
        code, member.reliability.notice = member.reliability.notice, ""
        commands += tell(state, event.peer, code)
    if known is None:
        commands.append(Note("joined", f"{_who(event.role, event.person)} joined", (event.person,)))
    greeting = _greeting(state, reconciled=member.reconciled or not member.trains)
    answer: list[Command] = [Send((event.peer,), greeting), Send((event.peer,), standing(state))]
    member.resent_to = -1
    return [*answer, *_void_to(state, event.peer, hello), *commands, *resend(state, member, hello.log_index)]


def _arrive(state: RunState, event: Joined) -> Member:
    reliability = state.reliabilities.pop(event.peer, None) or Reliability()
    member = Member(
        event.peer,
        event.person,
        event.machine,
        event.role,
        NO_ACCUMULATOR,
        state.now,
        state.now,
        reliability=reliability,
    )
    state.members[event.peer] = member
    look_soon(state)
    return member


def _void_to(state: RunState, peer: PeerId, hello: m.Hello) -> list[Command]:
    """Send a peer a Void message for each attempt that was voided while the peer was away.

    Committed attempts need no message, because the peer sees them in the log.
    """
    round_ = state.round
    open_attempts = range(round_.attempt - round_.attempts + 1, round_.attempt + 1) if round_ else range(0)
    why = "the round ended while this machine was away"
    over = [
        doubt.attempt
        for doubt in hello.in_doubt
        if (doubt.step, doubt.fence) == (state.step, state.fence) and doubt.attempt not in open_attempts
    ]
    void = m.Void(run=state.run, step=state.step, fence=state.fence, attempt=0, round=0, reason=why)
    return [Send((peer,), replace(void, attempt=attempt)) for attempt in over]


def _listen(state: RunState, member: Member, hello: m.Hello) -> list[Command]:
    """Record where peers can dial a member, and whether it reduces or keeps the log. Tell the others of any change."""
    before = state.listeners()
    member.url, member.fingerprint = hello.url, hello.fingerprint
    member.reduces, member.may_keep = hello.reduces, hello.keeps_log
    member.reserve, member.uplink_told = hello.reserve_percent / 100, 0.0
    if member.is_reachable:
        state.listening[member.peer] = member
    else:
        state.listening.pop(member.peer, None)
    _appoint(state)
    if state.listeners() == before:
        return []
    others = tuple(peer for peer in state.members if peer != member.peer)
    return [Send(others, m.Listeners(run=state.run, listeners=state.listeners()))]


def _appoint(state: RunState) -> None:
    """Let other members keep the log while no relay does (decision 12). End this role only between rounds."""
    able = [member for member in state.listening.values() if member.may_keep]
    has_relay = any(member.role in KEEPING_ROLES for member in able)
    stand_ins = set[PeerId]() if has_relay else _stand_ins(able)
    for member in able:
        if member.peer in stand_ins or state.round is None:
            member.stands_in = member.peer in stand_ins


def _stand_ins(able: list[Member]) -> set[PeerId]:
    """Return the members that keep the log if no relay does: all auxiliaries, or else the first two trainers."""
    auxiliaries = {member.peer for member in able if member.role is Role.AUXILIARY}
    trainers = sorted((member for member in able if member.trains), key=lambda p: (p.joined_at, p.peer))
    return auxiliaries or {member.peer for member in trainers[:STAND_INS]}


def reappoint(state: RunState) -> list[Command]:
    """Once no round is open, let a relay that joined during the last one take over the log from its stand-ins.

    Called on clock ticks.
    """
    before = state.listeners()
    _appoint(state)
    if state.listeners() == before:
        return []
    return [Send(state.everyone(), m.Listeners(run=state.run, listeners=state.listeners()))]


def _reconcile(state: RunState, member: Member, hello: m.Hello) -> list[Command]:
    """Compare the work that a trainer's hello lists with the lease book."""
    commands: list[Command] = []
    member.step = -1 if state.is_undone(hello.log_index) else hello.step
    member.quota, member.reconciled = 0, False
    if member.accumulator != hello.accumulator:  # the trainer's process is new, so its earlier offer is lost
        commands = _give_up(state, member)
        member.accumulator = hello.accumulator
        if state.holders.get(member.accumulator, member.peer) != member.peer:
            # Public records contain the names of accumulators. A peer must gain nothing by claiming another peer's
            # accumulator.
            member.accumulator = NO_ACCUMULATOR
            return [*commands, Send((member.peer,), revoked(state, hello.accumulator, "it is another machine's"))]
        _resume(state, member, hello)
    if member.step != state.step:
        return commands  # updates unknown to the peer may include its units; it sends another hello at the latest entry
    member.reconciled = True
    held = [done.unit for done in hello.done] + list(hello.undone)
    if not state.leases.claim(hello.accumulator, held):
        return commands + revoke(state, member, "its leases had ended")
    is_fresh = state.now - member.granted_at < ROUND_TRIP_S  # the hello may have been sent before the lease arrived
    known = set(held).union(member.granted if is_fresh else ())
    end_leases(state, hello.accumulator, state.leases.held.get(hello.accumulator, set()).difference(known))
    member.done = {done.unit: done.base for done in hello.done}
    member.done_samples = sum(unit.samples for unit in member.done)
    return commands


def _give_up(state: RunState, member: Member) -> list[Command]:
    """Discard a member's previous accumulator, and withdraw the offer made from it."""
    if not member.accumulator:
        return []
    end_leases(state, member.accumulator)
    state.holders.pop(member.accumulator, None)
    member.carried, member.samples_per_token, member.done, member.done_samples = 0, 0.0, {}, 0
    member.granted, member.short_since = (), None
    return withdraw(state, member.peer, "started anew")


def _resume(state: RunState, member: Member, hello: m.Hello) -> None:
    """Accept a trainer's accumulator, and as many of its carried tokens as the last records allow (rule 9)."""
    state.holders[member.accumulator] = member.peer
    allowed, member.samples_per_token = carried_of(state, member.accumulator)
    member.carried = min(hello.carried, allowed)
    gone = state.departed.get(member.peer)
    if gone is None:
        return
    if gone.accumulator == member.accumulator:
        del state.departed[gone.peer]
        member.carried, member.samples_per_token = gone.carried, gone.samples_per_token
    else:
        end_leases(state, gone.accumulator)
        depart(state, gone)


def _who(role: Role, person: str) -> str:
    match role:
        case Role.RELAY:
            return f"A relay of {person}"
        case Role.AUXILIARY:
            return f"An auxiliary of {person}"
    return person


def _greeting(state: RunState, *, reconciled: bool) -> m.Greeting:
    return m.Greeting(
        run=state.run,
        slug=state.slug,
        title=state.title,
        fence=state.fence,
        recipe=state.recipe_bytes,
        elements=state.elements,
        shards=state.shards,
        snapshot=state.snapshot,
        index=state.index,
        step=state.step,
        digest=state.digest,
        listeners=state.listeners(),
        site_key=state.site_key,
        reconciled=reconciled,
    )


def lose(state: RunState, member: Member, *, final: bool) -> list[Command]:
    """End a member's session, and continue the round without it.

    The member's leases last a few more rounds, unless it left the run or was banned.
    """
    discount(state, member)
    keep_record(state, member)
    del state.members[member.peer]
    state.replicas.peers.discard(member.peer)
    look_soon(state)
    commands: list[Command] = []
    if state.listening.pop(member.peer, None) is not None:
        _appoint(state)
        commands.append(Send(state.everyone(), m.Listeners(run=state.run, listeners=state.listeners())))
    if not member.trains:
        note = Note("left", f"{_who(member.role, member.person)} is gone", (member.person,))
        return [*commands, note, *without(state, member.peer)]
    if final:
        end_leases(state, member.accumulator)
        state.holders.pop(member.accumulator, None)
    elif member.accumulator:
        state.departed[member.peer] = Departed(
            member.accumulator, member.peer, state.rounds, member.carried, member.samples_per_token
        )
    note = Note("left", f"{member.person} {'left' if final else 'is away'}", (member.person,))
    return [*commands, note, *without(state, member.peer)]
