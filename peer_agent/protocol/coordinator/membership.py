"""Who is in the run and what they work on: hello, reports, leases, leaving."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Joined, Note, Resend, Reserve, Send
from peer_agent.protocol.coordinator.rounds import everyone, revoke, revoked, withdraw
from peer_agent.protocol.coordinator.settlement import end_leases
from peer_agent.protocol.coordinator.state import NO_ACCUMULATOR, Departed, Member, Phase, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId

SILENT_S = 6.0  # a trainer not heard of for so long is planned no share of the batch
HEADROOM = 1.25  # of its planned share may lie in an accumulator before its trainer rests (rule 22)
AHEAD = 2.0  # rounds' worth of units leased in advance


def join(state: RunState, event: Joined, now: float) -> list[Command]:
    """A hello, new or repeated: it states everything the peer holds, so taking it twice changes nothing."""
    hello, known = event.hello, state.members.get(event.peer)
    member = known or Member(event.peer, event.person, event.machine, event.role, hello.accumulator, heard_at=now)
    state.members = dict(sorted({**state.members, event.peer: member}.items()))
    member.log_index, member.heard_at, member.silent = hello.log_index, now, False
    commands: list[Command] = []
    if event.role is Role.RELAY:
        commands += _join_relay(state, member, hello)
    else:
        commands += _join_trainer(state, member, hello, now)
    if known is None:
        who = f"A relay of {event.person}" if event.role is Role.RELAY else event.person
        commands.append(Note("joined", f"{who} joined"))
    greeting = _greeting(state, reconciled=member.reconciled or event.role is Role.RELAY)
    answer: list[Command] = [Send((event.peer,), greeting), Send((event.peer,), standing(state))]
    return [*answer, *_void_to(state, event.peer, hello), *commands, *_missed(state, member)]


def standing(state: RunState) -> m.State:
    """What the run does now, and why it waits."""
    if state.finished:
        return m.State(run=state.run, state="finished", reason="")
    if state.goal == "finishing":
        return m.State(run=state.run, state="finishing", reason=state.waiting)
    if state.goal == "paused":
        return m.State(run=state.run, state="paused", reason=state.waiting)
    return m.State(run=state.run, state="waiting" if state.waiting else "running", reason=state.waiting)


def _void_to(state: RunState, peer: PeerId, hello: m.Hello) -> list[Command]:
    """Attempts that ended without an update while the peer was away; of a commit it learns by the record (rule 4)."""
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


def _missed(state: RunState, member: Member) -> list[Command]:
    """Whoever has a log or a state that is behind gets the commits since; joining and catching up are the same."""
    behind = 0 <= member.log_index < state.index
    return [Resend(member.peer, member.log_index + 1)] if behind else []


def _join_relay(state: RunState, member: Member, hello: m.Hello) -> list[Command]:
    before = state.addresses()
    member.url, member.fingerprint = hello.url, hello.fingerprint
    member.upload_bps, member.download_bps = hello.upload_bps, hello.download_bps
    if state.addresses() == before:
        return []
    others = tuple(peer for peer in everyone(state) if peer != member.peer)
    return [Send(others, m.Relays(run=state.run, relays=state.addresses()))]


def _join_trainer(state: RunState, member: Member, hello: m.Hello, now: float) -> list[Command]:
    commands: list[Command] = []
    if member.accumulator != hello.accumulator:  # it was started anew: what it offered is gone
        end_leases(state, member.accumulator)
        commands = withdraw(state, member.peer, now, "started anew")
        member.accumulator, member.carried, member.done = hello.accumulator, 0, {}
    member.step, member.quota, member.reconciled = hello.step, 0, False
    if _is_anothers(state, member):
        member.accumulator = NO_ACCUMULATOR
        return [*commands, Send((member.peer,), revoked(state, hello.accumulator, "it is another machine's"))]
    _resume(state, member)
    if hello.step != state.step:
        return commands  # its units may be in updates it has not learned of; it says hello again at the head
    member.reconciled = True
    held = [done.unit for done in hello.done] + list(hello.undone)
    if not state.leases.claim(hello.accumulator, held):
        return commands + revoke(state, member, "its leases had ended")
    end_leases(state, hello.accumulator, state.leases.held.get(hello.accumulator, set()).difference(held))
    member.done = {done.unit: done.base for done in hello.done}
    return commands


def _is_anothers(state: RunState, member: Member) -> bool:
    """Accumulators are named in public records: whoever repeats such a name must not get what it holds."""
    gone = state.departed.get(member.accumulator)
    others = (p for p in state.members.values() if p.peer != member.peer)
    return (gone is not None and gone.peer != member.peer) or any(p.accumulator == member.accumulator for p in others)


def _resume(state: RunState, member: Member) -> None:
    """A trainer is back: with the accumulator it left with, or with another, and then the old one's leases end."""
    for gone in [gone for gone in state.departed.values() if gone.peer == member.peer]:
        del state.departed[gone.accumulator]
        if gone.accumulator == member.accumulator:
            member.carried, member.samples_per_token = gone.carried, gone.samples_per_token
        else:
            end_leases(state, gone.accumulator)


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
        relays=state.addresses(),
        site_key=state.site_key,
        reconciled=reconciled,
    )


def lose(state: RunState, member: Member, *, final: bool) -> list[Command]:
    """A session ended. Leases last some rounds longer, unless the peer said goodbye or was banned."""
    del state.members[member.peer]
    if member.role is Role.RELAY:
        return [
            Send(everyone(state), m.Relays(run=state.run, relays=state.addresses())),
            Note("left", f"a relay ({member.person}) is gone"),
        ]
    if final:
        end_leases(state, member.accumulator)
    elif member.accumulator:
        state.departed[member.accumulator] = Departed(
            member.accumulator, member.peer, state.rounds, member.carried, member.samples_per_token
        )
    return [Note("left", f"{member.person} {'left' if final else 'is away'}")]


def take_report(state: RunState, member: Member, report: m.Report) -> list[Command]:
    """Progress of a trainer. Its units must be leased to it, and fresh enough to be offered (rule 10)."""
    if report.accumulator != member.accumulator:
        return []
    member.step = report.step if report.step <= state.step else member.step
    if math.isfinite(report.samples_per_s) and report.samples_per_s >= 0:
        member.samples_per_s = report.samples_per_s
    if not member.reconciled or report.step != state.step or state.phase is Phase.COMMIT:
        return []  # said before it learned of the last commit, or about to be settled
    if state.round is not None and member.peer in state.round.offers:
        return []
    units = {done.unit: done.base for done in report.done}
    if not state.leases.holds(member.accumulator, units):
        return revoke(state, member, "it reported work that was not leased to it")
    if any(base < state.step - max(state.recipe.staleness, 1) for base in units.values()):
        return revoke(state, member, "its gradients were too old")
    if units.keys() - member.done.keys():
        state.non_finite.pop(member.peer, None)  # it can still get finite gradients
    member.done = units
    return []


def take_returned(state: RunState, member: Member, returned: m.UnitsReturned) -> list[Command]:
    """Leased work that will not be done there."""
    begun = state.leases.held.get(member.accumulator, set()).intersection(returned.units).difference(member.done)
    for unit in returned.units:
        member.done.pop(unit, None)
    if returned.reason == "non_finite":
        end_leases(state, member.accumulator, returned.units, non_finite=True)
        before = state.non_finite.get(member.peer, 0)
        state.non_finite[member.peer] = before + len(begun)
        note = Note("non-finite", f"a gradient of {member.person} was not finite and was thrown away")
        return [] if before else [note]
    end_leases(state, member.accumulator, returned.units)
    return []


def leases_for(state: RunState, now: float, speaker: PeerId | None = None) -> list[Command]:
    """Top up ready trainers (or the one that spoke) to two rounds' worth of their share, below the database's marks."""
    if state.goal != "running" or state.done or state.has_diverged:
        return []
    ready = state.ready()
    if not ready or (not state.started and len(ready) < state.recipe.minimum_trainers):
        return []
    commands: list[Command] = []
    marks = state.leases.wanted_marks(4 * max(state.recipe.target_batch, state.recipe.micro_batch * len(ready)))
    if marks and not state.reserving:
        state.reserving = True
        commands.append(Reserve(marks))
    served = [member for member in ready if member.accumulator and speaker in (None, member.peer)]
    for member, share in _shares(state, ready, served, now):
        commands += _lease(state, member, share)
    return commands


def _shares(state: RunState, ready: Sequence[Member], served: Sequence[Member], now: float) -> list[tuple[Member, int]]:
    """Samples of the batch a trainer is expected to make, by measured speed; equal shares until it is known."""
    awake = {p.peer: p.samples_per_s for p in ready if not p.silent and now - p.heard_at <= SILENT_S}
    known = [speed for speed in awake.values() if speed]
    usual = sum(known) / len(known) if known else 1.0
    together = sum(speed or usual for speed in awake.values())
    unit = state.recipe.micro_batch
    shares = []
    for member in served:
        speed = member.samples_per_s or usual
        whole = together if member.peer in awake else together + speed
        shares.append((member, max(unit, math.ceil(state.recipe.target_batch * speed / whole / unit) * unit)))
    return shares


def _lease(state: RunState, member: Member, share: int) -> list[Command]:
    quota = math.ceil(HEADROOM * share / state.recipe.micro_batch) * state.recipe.micro_batch
    held = sum(unit.samples for unit in state.leases.held.get(member.accumulator, set()))
    ahead = held - member.done_samples
    units = state.leases.grant(member.accumulator, int(AHEAD * share) - ahead) if ahead < share else ()
    if not units and quota == member.quota:
        return []
    if not units and abs(quota - member.quota) * 5 < member.quota:
        return []
    member.quota = quota
    return [Send((member.peer,), m.Lease(run=state.run, fence=state.fence, units=units, quota=quota))]
