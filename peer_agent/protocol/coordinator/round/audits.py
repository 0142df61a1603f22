"""Check contributions: another person's machine computes one again, and sketches of both gradients are compared.

The coordinator draws contributions by a secret seed, after their gradients have been offered. The reducers make a
sketch of each gradient that they average; the auditor makes one of what it computes. One auditor's word decides
nothing, because it may lie or have bad memory. Its accusation puts the machine in doubt: all its contributions are
audited, until clearly more people have accused it than have cleared it, or the other way round. Only people for whom
the organizer vouches, or whose own work has passed an audit, are auditors.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Checked, Command, Note, Reverse, Send
from peer_agent.protocol.coordinator.reliability import Failure, Reliability
from peer_agent.protocol.coordinator.round.screening import SETTLED
from peer_agent.protocol.coordinator.state import Audit, Member, Round, RunState
from peer_agent.protocol.coordinator.workers.counts import blame
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import ChunkRange, Record, is_everywhere

RATE, NEWCOMERS_RATE, TRUSTED_RATE = 0.05, 0.25, 0.01  # share of contributions that are audited
CLEARED = 2  # people by which those who clear a machine must outnumber its accusers, to end the doubt
PROVEN = 3  # people by which its accusers must outnumber those who clear it
JUDGES = 5  # people who must have judged it by then
MAJORITY = 2  # replaces both numbers if its accusers are the majority of all who may audit
GROWN = 1.25  # times the largest contribution that passed an audit; a larger one is audited as often as a newcomer's
DISMISSALS = 2  # accusations by a machine that others have dismissed, after which it audits no more
REST = 3  # rounds in which a machine audits at most once, unless few people may audit or the audited one is in doubt
FEW = 3  # people
LONGEST_S = 60.0  # of an audit, from the auditor's usual speed
LONGEST_DOUBT = 50  # rounds; without a verdict, the doubt ends
MOST_SLOTS = 256  # contributions to a round with sketches, of 1 KiB each
PATIENCE = 20  # rounds after which an unanswered audit is forgotten
# Honest recomputations differ in rounding, codec and threads: their cosine was at least 0.9885 with int4, their norms
# differed by at most 1.7 %. Gradients of other samples had a cosine of at most 0.94.
SAME, OTHER = 0.98, 0.95  # cosines: at least SAME is the same gradient, below OTHER another one; in between is unclear
SAME_NORM, OTHER_NORM = 0.03, 0.1  # the same for the relative difference of the norms, and of the losses
WHY = "audits found other gradients"
FALSE = (
    "{} contributed gradients other than those of its samples, as the machines of {} found; its work since the last "
    "check no longer counts"
)


Numbers = NDArray[np.float64]


class Verdict(StrEnum):
    PASSED = "passed"
    UNCLEAR = "unclear"
    FAILED = "failed"


def draw_seeds(state: RunState, round_: Round, seed: int) -> None:
    """Draw the seed of a round's sketches, which its plan states, and a secret one for the choice of contributions.

    Only open runs have audits: in a closed run, the organizer vouches for everyone. In rounds of very many
    contributions, the sketches would be too large to send.
    """
    if state.trusted is not None and len(round_.slots) <= MOST_SLOTS:
        round_.seed = 1 + _drawn(seed, round_.number) % 2**52
        round_.secret = _drawn(seed, -round_.number)


def draw(state: RunState, round_: Round) -> list[Command]:
    """Draw contributions of this round, and ask other people's machines to compute them again."""
    if not round_.seed or round_.plan is None:
        return []
    commands, able = list[Command](), _able(state)
    for number in _in_turn(state, round_):
        slot = round_.slots[number]
        record, person = _record_of(state, slot.peer), round_.persons[slot.peer][0]
        if record.in_doubt and state.rounds > record.doubted_in + LONGEST_DOUBT:
            record.in_doubt, record.accused_by, record.cleared_by = False, frozenset(), frozenset()
        samples = sum(done.unit.samples for done in round_.offers[slot.peer].units)
        is_drawn = _drawn(round_.secret, 3 * number + 1) < 2**64 * _rate(state, record, person, samples)
        if not is_drawn or not _is_comparable(state, round_, slot):
            continue
        auditors = _auditors(state, able, record, person, samples)
        if auditors:
            auditor = auditors[_drawn(round_.secret, 3 * number + 2) % len(auditors)]
            able.remove(auditor)
            commands += _ask(state, round_, number, auditor)
    return commands


def _in_turn(state: RunState, round_: Round) -> list[int]:
    """Return the slots in the order in which they get auditors: machines in doubt first, all others at random."""

    def turn(number: int) -> tuple[bool, int]:
        return not _record_of(state, round_.slots[number].peer).in_doubt, _drawn(round_.secret, 3 * number)

    return sorted(range(len(round_.slots)), key=turn)


def take_audited(state: RunState, member: Member, message: m.Audited) -> list[Command]:
    """Keep an auditor's answer until the update is committed, then compare."""
    audit = state.audits.get(message.number)
    if audit is None or audit.auditor != member.peer or audit.answer is not None:
        return []
    if message.sketch and len(message.sketch) != m.SKETCH_BYTES:
        return []  # nothing that an auditor of this version would say
    audit.answer = message
    return _judge(state, message.number, audit) if audit.sketch else []


def compare(state: RunState, round_: Round, record: Record) -> list[Command]:
    """Keep the sketches of this update's audited contributions, and compare those that have been answered.

    A contribution that is not in all chunks has no complete sketch, so its audit ends.
    """
    whole = {part.peer: part for part in record.contributions if is_everywhere(part, record)}
    commands = list[Command]()
    for number, audit in list(state.audits.items()):
        if audit.round == round_.number and audit.peer in whole:
            spans = _compared(state, round_)
            if tuple(ChunkRange(span.first, span.stop) for span in spans) != audit.parts:
                del state.audits[number]  # the round was planned again
                continue
            said = [round_.done[span.span].sketches for span in spans]
            if not all(said):
                del state.audits[number]  # a report was lost, and its repetitions have no sketches
                continue
            sketches = [_numbers(each[audit.slot]) for each in said]
            audit.index = record.index
            audit.sketch = np.sum(sketches, axis=0).astype("<f4").tobytes()
            commands += _judge(state, number, audit) if audit.answer is not None else []
        elif audit.round <= round_.number - PATIENCE or audit.round == round_.number:
            del state.audits[number]
    return commands


def forget_round(state: RunState, round_: Round) -> None:
    """End the audits of a void round. Its gradients will be offered again, with others."""
    state.audits = {number: audit for number, audit in state.audits.items() if audit.round != round_.number}


def verdict_of(audit: Audit) -> Verdict:
    """Compare what was averaged and stated with the auditor's answer."""
    assert audit.answer is not None
    cosine, norm = agreement(_numbers(audit.sketch), _numbers(audit.answer.sketch))
    loss = audit.loss_sum / audit.answer.loss_sum if audit.answer.loss_sum else float(not audit.loss_sum)
    apart = max(abs(norm - 1), abs(loss - 1))
    if cosine < OTHER or apart > OTHER_NORM or audit.loss_tokens != audit.answer.loss_tokens:
        return Verdict.FAILED
    return Verdict.PASSED if cosine >= SAME and apart <= SAME_NORM else Verdict.UNCLEAR


def agreement(one: Numbers, other: Numbers) -> tuple[float, float]:
    """Return the cosine of two sketches, and the first one's norm divided by the other's. 0 if either has no norm."""
    norms = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if one.shape != other.shape or not all(np.isfinite(norms)) or not all(norms):
        return 0.0, 0.0
    return float(one @ other) / (norms[0] * norms[1]), norms[0] / norms[1]


def _drawn(seed: int, number: int) -> int:
    """Return 64 bits that look random to anyone without the seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "big")


def _numbers(sketch: bytes) -> Numbers:
    return np.frombuffer(sketch, "<f4").astype(np.float64)


def _rate(state: RunState, record: Reliability, person: str, samples: int) -> float:
    if record.in_doubt:
        return 1.0
    if state.trusted is not None and person in state.trusted:
        return TRUSTED_RATE
    is_known = record.audits_passed and samples <= GROWN * record.checked_samples
    return RATE if is_known and state.contributed[person] >= SETTLED else NEWCOMERS_RATE


def _compared(state: RunState, round_: Round) -> list[m.PlannedSpan]:
    """Return the spans whose sketches are compared: those of the site's relays and of people whom the run trusts.

    A stranger's machine that averages could make false sketches, and so accuse others. If no relay or trusted
    person averages, compare all spans.
    """
    assert round_.plan is not None
    spans = sorted(round_.plan.spans, key=lambda span: span.first)
    if not any(map(state.is_vouched_for, state.reducers())):
        return spans
    vouched = {peer for peer, member in state.members.items() if state.is_vouched_for(member)}
    return [span for span in spans if span.reducer in vouched]


def _is_comparable(state: RunState, round_: Round, slot: m.Slot) -> bool:
    """Return True if an auditor could compute the whole gradient: it carries nothing over from earlier steps.

    With int4, the encoding errors of the step before, which the gradient contains, may be too large (rule 9).
    """
    offer = round_.offers[slot.peer]
    is_fresh = all(done.base == state.step for done in offer.units)
    is_new = {weight.tokens for weight in offer.weights} == {offer.loss_tokens}
    return bool(offer.units) and is_fresh and is_new and slot.codec != "int4"


def _able(state: RunState) -> list[Member]:
    """Return the machines that may audit in this round, by id."""
    may = audited_people(state)
    busy = {audit.auditor for audit in state.audits.values()}
    members = [
        member
        for member in state.awake()
        if member.person in may
        and member.peer not in busy
        and member.reliability.audited_in < state.rounds
        and not state.in_quarantine(member.reliability)
    ]
    return sorted(members, key=lambda member: member.peer)


def _auditors(state: RunState, able: Sequence[Member], record: Reliability, person: str, samples: int) -> list[Member]:
    """Return those who may audit a person's machine now. If it is in doubt, each person judges it only once."""
    rest = 1 if record.in_doubt or len({member.person for member in able}) <= FEW else REST
    others = [
        member
        for member in able
        if member.person != person
        and member.reliability.audited_in <= state.rounds - rest
        and samples <= LONGEST_S * member.samples_per_s
    ]
    judged = record.accused_by | record.cleared_by
    return [member for member in others if member.person not in judged]


def audited_people(state: RunState) -> set[str]:
    """Return the people here who may audit. The organizer vouches for them, or a machine of theirs has passed an audit.

    If there are none, anyone may audit: at the beginning of a run whose organizer has no machine in it.
    """
    here = [each for each in state.members.values() if each.trains and each.reliability.dismissed < DISMISSALS]
    known = {each.person for each in here if state.is_audited(each)}
    return known or {each.person for each in here}


def _is_proven(state: RunState, person: str, record: Reliability) -> bool:
    """Return True if a machine's work counts as false, because clearly more people accuse it than clear it.

    Either they are most of those who may judge it, or enough people have judged it: three who lie might happen to be
    asked first.
    """
    judges, lead = audited_people(state), len(record.accused_by) - len(record.cleared_by)
    if len(judges) < FEW:  # in the beginning, strangers may have become auditors by clearing each other
        judges = {member.person for member in state.members.values() if member.trains}
    able = len(judges - {person})
    if 2 * len(record.accused_by) > able:
        return lead >= MAJORITY
    return lead >= PROVEN and len(record.accused_by | record.cleared_by) >= JUDGES


def _ask(state: RunState, round_: Round, number: int, auditor: Member) -> list[Command]:
    peer = round_.slots[number].peer
    offer, parts = round_.offers[peer], tuple(ChunkRange(s.first, s.stop) for s in _compared(state, round_))
    if not parts:
        return []
    state.audits_drawn += 1
    state.audits[state.audits_drawn] = Audit(
        peer=peer,
        name="{} ({})".format(*round_.persons[peer]),
        person=round_.persons[peer][0],
        auditor=auditor.peer,
        auditing=auditor.person,
        round=round_.number,
        slot=number,
        samples=sum(done.unit.samples for done in offer.units),
        loss_sum=offer.loss_sum,
        loss_tokens=offer.loss_tokens,
        parts=parts,
    )
    auditor.reliability.audited_in = state.rounds
    message = m.Audit(
        run=state.run,
        number=state.audits_drawn,
        step=state.step,
        units=tuple(done.unit for done in offer.units),
        codec=round_.slots[number].codec,
        chunk_elements=state.grid.chunk_elements,
        parts=parts,
        seed=round_.seed,
    )
    return [Send((auditor.peer,), message)]


def _judge(state: RunState, number: int, audit: Audit) -> list[Command]:
    del state.audits[number]
    assert audit.answer is not None
    if not audit.answer.sketch:
        return []  # the auditor could not compute it
    record, commands = _record_of(state, audit.peer), list[Command]()
    match verdict_of(audit):
        case Verdict.PASSED:
            record.audits_passed += 1
            record.checked_samples = max(record.checked_samples, audit.samples)
            record.accused_by -= {audit.auditing}
            if not record.accused_by:
                record.checked_index = max(record.checked_index, audit.index)
            record.cleared_by |= {audit.auditing} if record.in_doubt else set()
            commands.append(Checked(audit.peer, record.checked_index, record.audits_passed))
        case Verdict.UNCLEAR:
            _doubt(state, record)
        case Verdict.FAILED:
            _doubt(state, record)
            record.accused_by |= {audit.auditing}
            record.cleared_by -= {audit.auditing}
    lead = len(record.accused_by) - len(record.cleared_by)
    if _is_proven(state, audit.person, record):
        return commands + _prove(state, audit, record)
    if record.in_doubt and lead <= -CLEARED:
        _dismiss(state, record)
    return commands


def _doubt(state: RunState, record: Reliability) -> None:
    """Audit all contributions of a machine from now on."""
    if not record.in_doubt:
        record.in_doubt, record.doubted_in = True, state.rounds


def _dismiss(state: RunState, record: Reliability) -> None:
    """End a machine's doubt, and audit those who accused it. After several such cases, they audit no more."""
    for member in state.members.values():
        if member.person in record.accused_by and member.trains:
            _doubt(state, member.reliability)
            member.reliability.dismissed += 1
    record.accused_by = record.cleared_by = frozenset()
    record.in_doubt = False


def _prove(state: RunState, audit: Audit, record: Reliability) -> list[Command]:
    """Quarantine a machine whose work has been proven false, take back its credit, and tell everyone."""
    accusers = sorted(record.accused_by)
    record.accused_by, record.cleared_by, record.audits_passed = frozenset(), frozenset(), 0
    record.doubted_in = state.rounds
    blame(state, record, Failure.FALSE)
    fault = Fault.of("E143")
    return [
        Note("refused", FALSE.format(audit.name, " and ".join(accusers)), (audit.person, *accusers)),
        Reverse(audit.peer, record.checked_index, WHY),
        Send((audit.peer,), m.Notice(run=state.run, code=fault.code, text=fault.text)),
    ]


def _record_of(state: RunState, peer: PeerId) -> Reliability:
    """Return the record of a machine, which may have left."""
    member = state.members.get(peer)
    return member.reliability if member is not None else state.reliabilities.setdefault(peer, Reliability())
