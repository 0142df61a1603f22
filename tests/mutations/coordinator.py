"""Faults in the coordinator."""

from tests.mutations.mutation import Mutation

SOURCE = "peer_agent/protocol/coordinator/"
TESTS = "tests/protocol/coordinator/"


def _test_file(name: str) -> str:
    room, _, module = name.rpartition("/")
    return f"{TESTS}{room}{'/' if room else ''}test_{module}.py"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"{SOURCE}{file}.py", before, after, tuple(_test_file(test) for test in tests))


VOTES = "    return 2 * ballot.counts.get(value, 0) > voting"
EXACT = "    return complete and fresh and uniform and untouched"
LIVING = "    return {peer for peer in said if peer in state.members and state.members[peer].keeps_log}"
WALK = "tokens = 0 if entry.is_whole else tokens + entry.weight"

COORDINATOR: tuple[Mutation, ...] = (
    fault(
        "no majority needed",
        "agreement/digests",
        VOTES,
        "    return ballot.counts.get(value, 0) > 0",
        "agreement/digests",
    ),
    fault(
        "a round begins while a relay is ahead",
        "round/offers",
        " or state.is_recovering:",
        ":",
        "recovery",
    ),
    fault(
        "another branch's records void a round",
        "recovery",
        "(head.index, head.previous) != (state.index + 1, state.digest)",
        "head.index != state.index + 1",
        "recovery",
    ),
    fault(
        "a run waits for a relay again and again",
        "recovery",
        "            state.ahead[member.peer] = state.now\n",
        "            del state.ahead[member.peer]\n",
        "recovery",
    ),
    fault(
        "one person holds up a run",
        "recovery",
        "        if not has_relay or len({other.person for other in trainers}) > 1:",
        "        if True:",
        "recovery",
    ),
    fault(
        "relays delete what the site has not archived",
        "agreement/snapshots",
        "    return kept if state.archived is None else min(kept, state.archived)",
        "    return kept",
        "agreement/snapshots",
    ),
    fault("a tie counts", "agreement/digests", VOTES, VOTES.replace(">", ">="), "agreement/digests"),
    fault(
        "machines vote, not people",
        "agreement/digests",
        VOTES,
        VOTES.replace("counts", "machines"),
        "agreement/digests",
    ),
    fault("a stale step is still exact", "round/recording", EXACT, EXACT.replace("fresh and ", ""), "round/recording"),
    fault(
        "a clipped step is still exact",
        "round/recording",
        EXACT,
        EXACT.replace(" and untouched", ""),
        "round/recording",
    ),
    fault(
        "a carried step is still exact", "round/recording", EXACT, EXACT.replace("uniform and ", ""), "round/recording"
    ),
    fault("a dead relay's spans count as held", "round/planning", LIVING, "    return said", "round/planning"),
    fault(
        "a frozen relay accuses its contributors",
        "awaited",
        "    unseen_s = state.now - round_.reported_at(reducer)",
        "    unseen_s = 0.0",
        "awaited",
    ),
    fault(
        "a deadline moves without progress",
        "round/reducing",
        "        if before is not None and chunks > before.chunks:",
        "        if before is not None:",
        "awaited",
    ),
    fault(
        "carried always the last weight",
        "workers/settlement",
        "    holder.carried = 0 if is_whole else max(",
        "    holder.carried = max(",
        "workers/settlement",
    ),
    fault(
        "who was late at the end is dropped for it",
        "round/lateness",
        "is_behind = _longest_row(_missed(round_, done, slot)) > batch",
        "is_behind = _longest_row(_missed(round_, done, slot)) > 0",
        "round/lateness",
    ),
    fault(
        "a late slot is dropped though too few are left",
        "round/lateness",
        "if is_behind and has_quorum(",
        "if is_behind or has_quorum(",
        "round/lateness",
    ),
    fault(
        "who was dropped is forgotten, and sigma shrinks",
        "round/lateness",
        "said.get(peer, plan.sigma)",
        "said.get(peer, 0.0)",
        "round/lateness",
    ),
    fault(
        "a reducer that stands still is waited for until the others are done",
        "decisions",
        "(Fact.ISOLATED,)",
        "(Fact.ISOLATED, Fact.OTHER_DONE)",
        "awaited",
    ),
    fault(
        "an average may be as large as its reducer says",
        "round/reducing",
        "    if not _is_possible(state, round_, member.peer, done):",
        "    if False:",
        "round/reducing",
    ),
    fault(
        "each span may be as large as all gradients",
        "round/reducing",
        "sum(each.sum_squares for each in (*mine, done))",
        "done.sum_squares",
        "round/reducing",
    ),
    fault(
        "a relay's own sum convicts nobody",
        "round/reducing",
        "        is_proof = planned.reducer != member.peer and",
        "        is_proof = False and",
        "round/reducing",
    ),
    fault(
        "machines decide what is typical",
        "typical",
        "        own[person].append(value)",
        "        own[str(len(own))].append(value)",
        "typical",
    ),
    fault(
        "a stranger weighs what it says",
        "round/screening",
        "else min(most, tokens) for",
        "else tokens for",
        "round/screening",
    ),
    fault(
        "newcomers weigh as much as others",
        "round/screening",
        "min(most, int(NEWCOMER * total[person]))",
        "min(most, total[person])",
        "round/screening",
    ),
    fault(
        "one of two people decides which norm is typical",
        "round/screening",
        "if earlier and len(set(persons)) < FEW:",
        "if False:",
        "round/screening",
    ),
    fault(
        "one stranger averages everything",
        "round/planning",
        "    if state.trusted is None:\n        return shares\n    members",
        "    if True:\n        return shares\n    members",
        "round/planning",
    ),
    fault(
        "one person's word proves that work is false",
        "round/audits",
        "    return max(2, min(PROVEN, ",
        "    return max(1, min(1, ",
        "round/audits",
    ),
    fault(
        "anyone may audit",
        "round/audits",
        "    return known or {",
        "    return {",
        "round/audits",
    ),
    fault(
        "own machines audit each other",
        "round/audits",
        "        if member.person != person\n",
        "        if member.person\n",
        "round/audits",
    ),
    fault(
        "sketches of strangers accuse others",
        "round/audits",
        "    if not any(map(state.is_vouched_for, state.reducers())):",
        "    if True:",
        "round/audits",
    ),
    fault(
        "a sketch of any length is kept",
        "round/audits",
        "if message.sketch and len(message.sketch) != m.SKETCH_BYTES:",
        "if False:",
        "round/audits",
    ),
    fault(
        "a part of the work is judged",
        "round/audits",
        "if is_everywhere(part, record)}",
        "}",
        "round/audits",
    ),
    fault(
        "false accusations have no consequence",
        "round/audits",
        "            member.reliability.dismissed += 1\n",
        "",
        "round/audits",
    ),
    fault(
        "credit follows the limited weight",
        "round/recording",
        "credit_of([round_.offers[slot.peer] for slot in round_.slots], ",
        "credit_of(round_.slots, ",
        "round/screening",
    ),
    fault(
        "a limited step is still exact",
        "round/recording",
        "    return slot.scale != 1.0 or slot.weights != round_.offers[slot.peer].weights",
        "    return slot.scale != 1.0",
        "round/screening",
    ),
    fault(
        "a probe shows whatever is said",
        "probing",
        "size = min(probed.size, int(PROBE_BPS * probed.seconds))",
        "size = probed.size",
        "probing",
    ),
    fault("carried never ends", "facts", WALK, "tokens = tokens + entry.weight", "facts"),
    fault(
        "carried is believed",
        "membership",
        "member.carried = min(hello.carried, allowed)",
        "member.carried = hello.carried",
        "membership",
    ),
    fault("a ban is an ordinary loss", "advance", "final=event.banned", "final=False", "advance"),
    fault(
        "orphans back at once",
        "workers/settlement",
        "    if state.leases.orphans and state.step >= state.orphans_until:",
        "    if state.leases.orphans:",
        "workers/settlement",
    ),
    fault(
        "nobody is ever silent", "workers/counts", "record.is_silent, record.proven = True, 0", "pass", "reliability"
    ),
    fault("quotas are never raised", "acting", "    state.quotas_raised = True\n", "", "workers/batch"),
    fault(
        "a full disk is asked again at once",
        "round/committing",
        '            return []\n        case "refused"',
        '            return [e.Persist(round_.record, 0.0, 1)]\n        case "refused"',
        "round/committing",
    ),
    fault("nobody is evicted", "awaited", "gone_s = member.heard_at + SILENT_S", "gone_s = math.inf", "acting"),
    fault("short rounds end a quarantine", "reliability", " or now < self.until_s", "", "state"),
    fault(
        "whom too few are left without is waited for no longer than anybody",
        "awaited",
        "        wait_s = max(wait_s, took_s + remake_s(state, round_, open_))",
        "        pass",
        "awaited",
    ),
    fault(
        "whom too few are left without is waited for, however long",
        "awaited",
        "        wait_s = max(wait_s, took_s + remake_s(state, round_, open_))",
        "        return math.inf",
        "awaited",
    ),
    fault(
        "whom the others cannot do without is dropped",
        "workers/batch",
        "if not others or _takes_too_long(state, others, sum(rates.values())):",
        "if not others:",
        "awaited",
    ),
    fault(
        "who takes back its offer is in the next round",
        "round/offers",
        "        if offered < round_.held[peer] and member.accumulator:",
        "        if False:",
        "round/offers",
    ),
    fault("nobody was late, and all wait longer", "round/offers", "+= bool(round_.waiting)", "+= 1", "round/offers"),
    fault(
        "a stopped reducer's gradient is waited for once more",
        "acting",
        "        commands += _drop_stopped(state, spare, Failure.MISSED)",
        "        pass",
        "round/stopped_reducers",
    ),
    fault(
        "a round is void for what an attempt anew could wait for",
        "acting",
        " and has_quorum_without(state, round_, spare):",
        ":",
        "round/stopped_reducers",
    ),
    fault(
        "a reducer that says nothing is dropped though its gradient comes",
        "acting",
        "if moved_at - heard_at <= REPORT_S and state.now",
        "if state.now",
        "round/stopped_reducers",
    ),
    fault(
        "a stall is four seconds, however short rounds are",
        "awaited",
        "min(PAUSE_S, max(REPORT_S, OTHERS * usual)) if usual else PAUSE_S",
        "PAUSE_S",
        "awaited",
    ),
    fault(
        "where rounds are long a slot has a second",
        "awaited",
        "min(PAUSE_S, max(REPORT_S, OTHERS * usual)) if usual else PAUSE_S",
        "REPORT_S",
        "awaited",
    ),
    fault(
        "one member's refusal takes another's work",
        "decisions",
        "Row(Kind.UPLOAD, (Fact.REFUSED, Fact.DISPUTED), Action.DROP)",
        "Row(Kind.UPLOAD, (Fact.REFUSED, Fact.DISPUTED), Action.DROP, Failure.REFUSED)",
        "acting",
    ),
    fault(
        "the words of two people are one",
        "round/reducing",
        "    return len(persons) == 1 and any(",
        "    return any(",
        "acting",
    ),
    fault(
        "a relay's word is a member's",
        "round/reducing",
        "    if any(_is_relay(state, peer) for peer in reducers):",
        "    if False:",
        "acting",
    ),
    fault(
        "a gradient that stops everywhere is disputed",
        "awaited",
        " or reported_s - seen.at < _pause_s(state, round_, reducer):",
        " or True:",
        "acting",
    ),
    fault(
        "a machine's share stays what it was, however late it is",
        "workers/counts",
        "    return min(record.rate, unit / idle_s) if is_late else record.rate",
        "    return record.rate",
        "workers/leasing",
    ),
    fault(
        "what is given back is leased anew at once",
        "reports",
        "    state.is_dirty = True\n    return notes",
        "    return [*notes, *top_up(state, member)]",
        "reports",
    ),
)
