"""Check contributions: another person's machine computes one again, and sketches of both gradients are compared.

The coordinator draws contributions by a secret seed, after their gradients have been offered. The reducers make a
sketch of each gradient that they average; the auditor makes one of what it computes. One auditor's word decides
nothing, because it may lie or have bad memory. Its accusation puts the machine in doubt: all its contributions are
audited, until clearly more people have accused it than have cleared it, or the other way round. Only people for whom
the organizer vouches, or whose own work has passed an audit, are auditors.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import (
    Checked,
    Command,
    Findings,
    Gradient,
    Heeded,
    Note,
    Recheck,
    Reverse,
    Send,
    Sketched,
    Verdict,
)
from peer_agent.protocol.coordinator.reliability import Failure, Reliability
from peer_agent.protocol.coordinator.round.screening import MOST_INCOMPARABLE, SETTLED
from peer_agent.protocol.coordinator.state import SKETCHED_KEPT, Audit, Member, Round, RunState
from peer_agent.protocol.coordinator.workers.counts import blame
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import ChunkRange, Record, is_everywhere
from peer_agent.protocol.recipe import AveragingRule, Codec

RATE, NEWCOMERS_RATE, TRUSTED_RATE = 0.05, 0.25, 0.01  # share of contributions that are audited
CLEARED = 2  # people by which those who clear a machine must outnumber its accusers, to end the doubt
PROVEN = 3  # people by which its accusers must outnumber those who clear it
JUDGES = 5  # people who must have judged it by then
MAJORITY = 2  # replaces both numbers if its accusers are the majority of all who may audit
DISMISSALS = 2  # accusations by a person that others have dismissed, after which the person's machines audit no more
REST = 3  # rounds in which a machine audits at most once, unless few people may audit or the audited one is in doubt
FEW = 3  # people
LONGEST_S = 60.0  # of an audit, from the auditor's usual speed
LONGEST_DOUBT = 50  # rounds; without a verdict, the doubt ends
SITE_NEEDS, SITE_CHECKS = 3, 5  # least comparable contributions of a machine that the site needs, and usually checks
EVIDENCE, MOST_EVIDENCE = 8, 16  # contributions up to the first accused one that the site computes again; and in all
ALARM = 50  # rounds after work was proven false, in which gradients are averaged by a rule that withstands more
ALARM_PEOPLE, ALARM_SLOTS = 4, 32  # fewest people and most gradients for that rule
SITE_AFTER = 20  # rounds of doubt, after which the site decides if people have not
UNCLEAR_INT4 = 5  # unclear audits in a row with int4, after which a machine is in doubt
MOST_SLOTS = 256  # contributions to a round with sketches, of 1 KiB each
PATIENCE = SKETCHED_KEPT  # rounds after which an unanswered audit is forgotten
WHY = "audits found other gradients"
FALSE = "{} contributed gradients other than those of its samples, as {} found; its work since {} no longer counts"


_SEVERITY = ("", "E147", "E143")  # of notices that a machine gets when it is back
Numbers = NDArray[np.float64]


class Limits(NamedTuple):
    """At least the cosine `same` is the same gradient, and below `other` another one; in between is unclear.

    The limits of norms apply to their relative difference. Those of `LIMITS` also apply to the losses, with all codecs.
    """

    same: float
    other: float
    same_norm: float
    other_norm: float


# Honest recomputations differ in rounding, codec and threads (`tests.benchmarks.training.verdicts`).
LIMITS = Limits(same=0.98, other=0.95, same_norm=0.03, other_norm=0.1)
LIMITS_INT4 = Limits(same=0.95, other=0.8, same_norm=0.1, other_norm=0.3)


class Work(StrEnum):
    """A machine's work, judged by the verdicts on some of its contributions."""

    TRUE = "true"
    FAULTY = "faulty"  # at most half was false, as with bad memory
    FALSE = "false"


def draw_seeds(state: RunState, round_: Round, seed: int) -> None:
    """Draw the seed of a round's sketches, which its plan states, and a secret one for the choice of contributions.

    Only open runs have audits: in a closed run, the organizer vouches for everyone. In rounds of very many
    contributions, the sketches would be too large to send.
    """
    if state.trusted is not None and len(round_.slots) <= MOST_SLOTS:
        round_.seed = 1 + _drawn(seed, round_.number) % 2**52
        round_.secret = _drawn(seed, -round_.number)


def rule_of(state: RunState, round_: Round) -> AveragingRule:
    """Return how this round's gradients are averaged: by the recipe's rule, or more carefully after audits failed.

    The geometric median of few people, or of one person with half the weight, may be a single gradient. Then the mean
    is better. It is also better for very many gradients, because a reducer would have to keep them all.
    """
    if state.recipe.rule != "mean" or state.trusted is None or state.rounds > state.alarmed_until:
        return state.recipe.rule
    tokens = Counter[str]()
    for slot in round_.slots:
        tokens[round_.persons[slot.peer][0]] += max(weight.tokens for weight in slot.weights)
    is_decided_by_one = 2 * max(tokens.values()) >= tokens.total()
    if len(tokens) < ALARM_PEOPLE or is_decided_by_one or len(round_.slots) > ALARM_SLOTS:
        return "mean"
    return "geometric median"


def draw(state: RunState, round_: Round) -> list[Command]:
    """Draw contributions of this round, and ask other people's machines to compute them again."""
    if not round_.seed or round_.plan is None:
        return []
    commands, able = list[Command](), _able(state)
    for number in _in_turn(state, round_):
        slot = round_.slots[number]
        record, person = _record_of(state, slot.peer), round_.persons[slot.peer][0]
        if record.in_doubt and state.rounds > record.doubted_in + LONGEST_DOUBT:
            _end_doubt(record)
        samples = sum(done.unit.samples for done in round_.offers[slot.peer].units)
        is_drawn = _drawn(round_.secret, 3 * number + 1) < 2**64 * _rate(state, record, person, samples)
        if not is_drawn or not is_comparable(round_.offers[slot.peer]):
            continue
        auditors = _auditors(state, able, record, person, samples)
        if auditors:
            auditor = auditors[_drawn(round_.secret, 3 * number + 2) % len(auditors)]
            able.remove(auditor)
            commands += _ask(state, round_, number, auditor)
    return commands


def _in_turn(state: RunState, round_: Round) -> list[int]:
    """Return the slots in the order in which they get auditors: those that must be audited first, others at random."""

    def turn(number: int) -> tuple[bool, int]:
        peer = round_.slots[number].peer
        is_urgent = _is_suspect(state, _record_of(state, peer), round_.persons[peer][0])
        return not is_urgent, _drawn(round_.secret, 3 * number)

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
    """Keep the sketches of this update's contributions, and compare audited ones that have been answered.

    An audit ends if its contribution is not in all chunks, if the round was planned again, or if a report was lost:
    its repetitions have no sketches.
    """
    seen = _seen(state, round_, record)
    if seen is not None:
        _count_incomparable(state, round_, seen)
        if _is_by_vouched(state, round_):
            state.sketched.append(seen)
    commands = list[Command]()
    for number, audit in list(state.audits.items()):
        is_here = audit.round == round_.number
        if is_here and seen is not None and seen.parts == audit.parts and audit.peer in seen.gradients:
            audit.index, audit.sketch = record.index, seen.gradients[audit.peer].sketch
            commands += _judge(state, number, audit) if audit.answer is not None else []
        elif is_here or audit.round <= round_.number - PATIENCE:
            del state.audits[number]
    return commands + _ask_site(state)


def _seen(state: RunState, round_: Round, record: Record) -> Sketched | None:
    """Return the sketches of an update's contributions that can be computed again. None if a report lacks sketches."""
    spans = _compared(state, round_) if round_.seed else []
    said = [round_.done[span.span].sketches for span in spans]
    if not spans or not all(said):
        return None
    whole = {part.slot for part in record.contributions if is_everywhere(part, record)}
    oldest = record.step - 1 - state.recipe.staleness  # records of runs with staleness 0 do not name stale units
    gradients = dict[PeerId, Gradient]()
    for number in sorted(whole):
        offer = round_.offers[round_.slots[number].peer]
        if is_comparable(offer) and all(done.base >= oldest for done in offer.units):
            sketch = np.sum([_numbers(each[number]) for each in said], axis=0).astype("<f4").tobytes()
            gradients[round_.slots[number].peer] = Gradient(sketch, offer.loss_sum, offer.loss_tokens)
    return Sketched(record.index, round_.seed, _parts(spans), gradients)


def _count_incomparable(state: RunState, round_: Round, seen: Sketched) -> None:
    """Count contributions in a row that no auditor could compute again: they carry gradients, or miss some chunks."""
    for slot in round_.slots:
        record = _record_of(state, slot.peer)
        record.incomparable = 0 if slot.peer in seen.gradients else record.incomparable + 1


def _is_by_vouched(state: RunState, round_: Round) -> bool:
    """Return True if only the site's relays and trusted people's machines made the sketches that are compared."""
    reducers = {span.reducer for span in _compared(state, round_)}
    return all(peer in state.members and state.is_vouched_for(state.members[peer]) for peer in reducers)


def _parts(spans: Iterable[m.PlannedSpan]) -> tuple[ChunkRange, ...]:
    return tuple(ChunkRange(span.first, span.stop) for span in spans)


def forget_round(state: RunState, round_: Round) -> None:
    """End the audits of a void round. Its gradients will be offered again, with others."""
    state.audits = {number: audit for number, audit in state.audits.items() if audit.round != round_.number}


def verdict_of(audit: Audit) -> Verdict:
    """Compare what was averaged and stated with the auditor's answer."""
    answer = audit.answer
    assert answer is not None
    stated = Gradient(audit.sketch, audit.loss_sum, audit.loss_tokens)
    return verdict(stated, Gradient(answer.sketch, answer.loss_sum, answer.loss_tokens), audit.codec)


def verdict(stated: Gradient, again: Gradient, codec: Codec) -> Verdict:
    """Compare a contribution with its recomputation.

    With int4, the encoding errors of the step before, which the contribution contains, are large (rule 9). The limits
    are then wider.
    """
    cosine, norm = agreement(_numbers(stated.sketch), _numbers(again.sketch))
    loss = stated.loss_sum / again.loss_sum if again.loss_sum else float(not stated.loss_sum)
    limits, norm_off, loss_off = LIMITS_INT4 if codec == "int4" else LIMITS, abs(norm - 1), abs(loss - 1)
    is_other = cosine < limits.other or norm_off > limits.other_norm or loss_off > LIMITS.other_norm
    if is_other or stated.loss_tokens != again.loss_tokens:
        return Verdict.FAILED
    is_same = cosine >= limits.same and norm_off <= limits.same_norm and loss_off <= LIMITS.same_norm
    return Verdict.PASSED if is_same else Verdict.UNCLEAR


def work_of(verdicts: Sequence[Verdict]) -> Work | None:
    """Return what the verdicts on some of a machine's contributions say about its work, or None if they are unclear.

    Bad memory spoils a few contributions among true ones.
    """
    failed, passed = verdicts.count(Verdict.FAILED), verdicts.count(Verdict.PASSED)
    if failed > passed and (failed > 1 or len(verdicts) == 1):
        return Work.FALSE
    if failed and passed:
        return Work.FAULTY
    return Work.TRUE if passed == len(verdicts) >= SITE_NEEDS else None


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
    if _is_suspect(state, record, person):
        return 1.0
    if _is_trusted(state, person):
        return TRUSTED_RATE
    is_settled = record.audits_passed and state.contributed[person] >= SETTLED
    known = min(1.0, record.checked_samples / samples) if is_settled else 0.0
    return RATE * known + NEWCOMERS_RATE * (1 - known)


def _is_suspect(state: RunState, record: Reliability, person: str) -> bool:
    """Return True for a machine that is in doubt, or a stranger's whose last contributions could not be audited."""
    is_unchecked = record.incomparable >= MOST_INCOMPARABLE and not _is_trusted(state, person)
    return record.in_doubt or is_unchecked


def _is_trusted(state: RunState, person: str) -> bool:
    return state.trusted is None or person in state.trusted


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


def must_be_comparable(state: RunState, member: Member) -> bool:
    """Return True for a stranger's machine that is in doubt, or whose last contributions could not be audited."""
    return not state.is_vouched_for(member) and _is_suspect(state, member.reliability, member.person)


def is_comparable(offer: m.Offer) -> bool:
    """Return True if an auditor could compute the whole gradient.

    It cannot if an earlier update included some chunks: the others contain units that this offer does not name.
    """
    return bool(offer.units) and {weight.tokens for weight in offer.weights} == {offer.loss_tokens}


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
    is_urgent = _is_suspect(state, record, person)
    rest = 1 if is_urgent or len({member.person for member in able}) <= FEW else REST
    others = [
        member
        for member in able
        if member.person != person
        and member.reliability.audited_in <= state.rounds - rest
        and samples <= LONGEST_S * member.samples_per_s
    ]
    judged = record.accused_by.keys() | record.cleared_by
    return [member for member in others if member.person not in judged]


def audited_people(state: RunState) -> set[str]:
    """Return the people here who may audit. The organizer vouches for them, or a machine of theirs has passed an audit.

    If there are none, anyone may audit: at the beginning of a run whose organizer has no machine in it.
    """
    here = [each for each in state.members.values() if each.trains and state.dismissed[each.person] < DISMISSALS]
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
    return lead >= PROVEN and len(record.accused_by.keys() | record.cleared_by) >= JUDGES


def _ask(state: RunState, round_: Round, number: int, auditor: Member) -> list[Command]:
    peer = round_.slots[number].peer
    offer, parts = round_.offers[peer], _parts(_compared(state, round_))
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
        codec=round_.slots[number].codec,
    )
    auditor.reliability.audited_in = state.rounds
    message = m.Audit(
        run=state.run,
        number=state.audits_drawn,
        step=state.step,
        units=tuple(done.unit for done in offer.units if done.base == state.step),
        stale=tuple(done.unit for done in offer.units if done.base < state.step),
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
            record.audits_passed, record.unclear = record.audits_passed + 1, 0
            record.checked_samples = max(record.checked_samples, audit.samples)
            record.accused_by.pop(audit.auditing, None)
            if not record.accused_by:
                record.checked_index = max(record.checked_index, audit.index)
            record.cleared_by |= {audit.auditing} if record.in_doubt else set()
            commands.append(Checked(audit.peer, record.checked_index, record.audits_passed))
        case Verdict.UNCLEAR:
            record.unclear += 1
            if audit.codec != "int4" or record.unclear >= UNCLEAR_INT4:  # with int4, a few are usual
                _doubt(state, record)
        case Verdict.FAILED:
            _doubt(state, record)
            record.accused_by[audit.auditing] = audit.index
            record.cleared_by -= {audit.auditing}
            _add_evidence(state, audit.peer, record, audit.index)
    lead = len(record.accused_by) - len(record.cleared_by)
    if _is_proven(state, audit.person, record):
        return commands + _prove(
            state, audit.peer, audit.name, (audit.person, *sorted(record.accused_by)), record.checked_index
        )
    if record.in_doubt and lead <= -CLEARED:
        commands += _ask_site_about(state, audit.peer, record) if record.evidence else []
        _dismiss(state, record)
    return commands


def _add_evidence(state: RunState, peer: PeerId, record: Reliability, index: int) -> None:
    """Keep an accused contribution for the site, and the ones before the first accused one.

    While those were computed, the machine did not know that it was in doubt. Without a sketch by machines that the run
    trusts, keep nothing.
    """
    own = {at: seen for at, seen in _kept(state, peer).items() if at <= index}
    if index in own and len(record.evidence) < MOST_EVIDENCE and not record.site_asked:
        chosen = [index] if record.evidence else sorted(own)[-EVIDENCE:]
        record.evidence |= {at: own[at] for at in chosen}


def _kept(state: RunState, peer: PeerId) -> dict[int, Sketched]:
    """Return a machine's contributions to the last updates, by log entry."""
    own = [seen for seen in state.sketched if peer in seen.gradients]
    return {seen.index: replace(seen, gradients={peer: seen.gradients[peer]}) for seen in own}


def _ask_site(state: RunState) -> list[Command]:
    """Let the site compute machines' contributions again, once per doubt, if people cannot decide.

    Either there are too few people, or they have not decided for some time.
    """
    people, asked = {member.person for member in state.members.values() if member.trains}, list[Command]()
    for member in state.members.values():
        record = member.reliability
        if not record.in_doubt or record.site_asked:
            continue
        is_undecided = state.rounds >= record.doubted_in + SITE_AFTER
        are_few = record.accused_by and len(people - {member.person}) < MAJORITY
        if is_undecided or are_few:
            asked += _ask_site_about(state, member.peer, record)
    return asked


def _ask_site_about(state: RunState, peer: PeerId, record: Reliability) -> list[Command]:
    """Let the site compute a machine's contributions again, once per doubt: the evidence, or else its last ones.

    Several are needed to tell a machine with bad memory from one that lies.
    """
    chosen = dict(record.evidence)
    for index, seen in sorted(_kept(state, peer).items(), reverse=True):
        if len(chosen) < SITE_CHECKS:
            chosen.setdefault(index, seen)
    if record.site_asked or len(chosen) < SITE_NEEDS:
        return []
    record.site_asked, record.evidence = True, chosen
    return [Recheck(tuple(chosen[index] for index in sorted(chosen)), peer)]


def take_findings(state: RunState, findings: frozenset[Findings]) -> list[Command]:
    """Act on what the site found by computing contributions again, once."""
    if state.rolling is not None:
        return []  # the next host takes them
    commands = list[Command]()
    for each in sorted(findings):
        if each.number not in state.heeded:
            for peer in sorted({one.peer for one in each.found}):
                verdicts = {one.index: one.verdict for one in each.found if one.peer == peer}
                commands += _take_verdicts(state, peer, verdicts)
            commands.append(Heeded(each.number))
    state.heeded = frozenset(each.number for each in findings)
    return commands


def _take_verdicts(state: RunState, peer: PeerId, verdicts: dict[int, Verdict]) -> list[Command]:
    """Act on the site's verdicts on some of a machine's contributions, by log entry.

    False work is false from the first false contribution on. The machine's doubt ends if the site was asked about it,
    and all contributions were true.
    """
    record, commands = _record_of(state, peer), list[Command]()
    is_known = {index: each is Verdict.FAILED and index <= record.judged_index for index, each in verdicts.items()}
    new = {index: each for index, each in verdicts.items() if not is_known[index]}
    failed = [index for index, each in new.items() if each is Verdict.FAILED]
    known = [Verdict.UNCLEAR] if len(new) < len(verdicts) else []  # so that a single new one is no proof
    match work_of([*new.values(), *known]):
        case Work.FALSE:
            member = state.members.get(peer)
            name, names = (f"{member.person} ({member.machine})", (member.person,)) if member is not None else ("", ())
            commands = _prove(state, peer, name, names, min(failed) - 1)
        case Work.FAULTY:
            record.judged_index = max(record.judged_index, *failed)
            _renew_doubt(state, record, verdicts)
            commands = _warn(state, peer)
        case Work.TRUE if record.in_doubt and record.site_asked and record.evidence.keys() <= verdicts.keys():
            _dismiss(state, record)
    _settle_accusations(state, record, verdicts)
    return commands


def _settle_accusations(state: RunState, record: Reliability, verdicts: dict[int, Verdict]) -> None:
    """Let those audit again whose accusation was dismissed by others, and confirmed by the site."""
    for person, index in record.overruled:
        state.dismissed[person] -= verdicts.get(index) is Verdict.FAILED
    is_open = {index for _, index in record.overruled if verdicts.get(index, Verdict.UNCLEAR) is Verdict.UNCLEAR}
    record.overruled = frozenset(each for each in record.overruled if each[1] in is_open)


def _renew_doubt(state: RunState, record: Reliability, verdicts: dict[int, Verdict]) -> None:
    """Begin a new doubt, with those accusations on which the site has no verdict. Count those that it contradicts."""
    left = {person: index for person, index in record.accused_by.items() if index not in verdicts}
    for person, index in record.accused_by.items():
        state.dismissed[person] += verdicts.get(index) is Verdict.PASSED
    _end_doubt(record)
    _doubt(state, record)
    record.accused_by = left


def _warn(state: RunState, peer: PeerId) -> list[Command]:
    """Tell a machine's owner that some of its work was false, and pause the machine.

    Its memory may be bad, so the timeline does not name it. If it happens again, the pause is longer.
    """
    record = _record_of(state, peer)
    record.faults += 1
    record.refusals.level = max(record.refusals.level, record.faults - 1)
    blame(state, record, Failure.REFUSED)
    return tell(state, peer, "E147")


def tell(state: RunState, peer: PeerId, code: str) -> list[Command]:
    """Send a notice to a machine. If it is away, keep the notice for its next hello."""
    if peer not in state.members:
        record = _record_of(state, peer)
        record.notice = max(record.notice, code, key=_SEVERITY.index)
        return []
    fault = Fault.of(code)
    return [Send((peer,), m.Notice(run=state.run, code=fault.code, text=fault.text))]


def _doubt(state: RunState, record: Reliability) -> None:
    """Audit all contributions of a machine from now on."""
    if not record.in_doubt:
        record.in_doubt, record.doubted_in, record.site_asked = True, state.rounds, False


def _end_doubt(record: Reliability) -> None:
    record.in_doubt, record.accused_by, record.cleared_by, record.evidence = False, {}, frozenset(), {}


def _dismiss(state: RunState, record: Reliability) -> None:
    """End a machine's doubt, and audit those who accused it. After several such cases, they audit no more."""
    for person in record.accused_by:
        state.dismissed[person] += 1
    for member in state.members.values():
        if member.person in record.accused_by and member.trains:
            _doubt(state, member.reliability)
    record.overruled |= record.accused_by.items()
    _end_doubt(record)


def _prove(state: RunState, peer: PeerId, name: str, persons: tuple[str, ...], index: int) -> list[Command]:
    """Quarantine a machine whose work has been proven false, take back its credit, and tell everyone.

    `name`: its person and name, or "" if it is unknown. `persons`: its person and, unless the site found the false work
    by itself, the people whose machines did. `index`: the log entry up to which its credit stays.
    """
    record = _record_of(state, peer)
    record.audits_passed, record.judged_index = 0, state.index + 1  # the entry that is being committed, if any
    _end_doubt(record)
    _doubt(state, record)
    state.alarmed_until = state.rounds + ALARM
    blame(state, record, Failure.FALSE)
    by = f"the machines of {' and '.join(persons[1:])}" if len(persons) > 1 else "the site"
    text = FALSE.format(name, by, "the last check" if len(persons) > 1 else "the first of them")
    notes = [Note("refused", text, persons)] if name else []
    return [*notes, Reverse(peer, index, WHY), *tell(state, peer, "E143")]


def _record_of(state: RunState, peer: PeerId) -> Reliability:
    """Return the record of a machine, which may have left."""
    member = state.members.get(peer)
    return member.reliability if member is not None else state.reliabilities.setdefault(peer, Reliability())
