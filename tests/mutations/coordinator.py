"""Faults of the coordinator."""

from tests.mutations.mutation import Mutation

SOURCE = "peer_agent/protocol/coordinator/"
TESTS = "tests/protocol/coordinator/"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    """A mutation of one of the coordinator's files, and the tests that are to notice it."""
    return Mutation(name, f"{SOURCE}{file}.py", before, after, tuple(f"{TESTS}test_{test}.py" for test in tests))


VOTES = "    return 2 * ballot.counts.get(value, 0) > voting"
EXACT = "    return complete and fresh and uniform and untouched"
LIVING = "    return {peer for peer in said if peer in state.members and state.members[peer].keeps_log}"
WALK = "tokens = 0 if entry.is_whole else tokens + entry.weight"

COORDINATOR: tuple[Mutation, ...] = (
    fault("no majority needed", "agreement", VOTES, "    return ballot.counts.get(value, 0) > 0", "agreement"),
    fault("a tie counts", "agreement", VOTES, VOTES.replace(">", ">="), "agreement"),
    fault("machines vote, not people", "agreement", VOTES, VOTES.replace("counts", "machines"), "agreement"),
    fault("a stale step is still exact", "recording", EXACT, EXACT.replace("fresh and ", ""), "committing"),
    fault("a clipped step is still exact", "recording", EXACT, EXACT.replace(" and untouched", ""), "committing"),
    fault("a carried step is still exact", "recording", EXACT, EXACT.replace("uniform and ", ""), "committing"),
    fault("a dead relay's spans count as held", "planning", LIVING, "    return said", "reducing"),
    fault(
        "a frozen relay accuses its contributors",
        "watching",
        "for slot in _behind(slots, last, round_.planned_at)",
        "for slot in slots",
        "reducing",
    ),
    fault(
        "a deadline moves without progress",
        "watching",
        "        if before is not None and chunks > before.chunks:",
        "        if before is not None:",
        "reducing",
    ),
    fault(
        "carried always the last weight",
        "settlement",
        "    holder.carried = 0 if is_whole else max(",
        "    holder.carried = max(",
        "committing",
    ),
    fault("carried never ends", "facts", WALK, "tokens = tokens + entry.weight", "facts"),
    fault(
        "carried is believed",
        "membership",
        "member.carried = min(hello.carried, allowed)",
        "member.carried = hello.carried",
        "facts",
    ),
    fault("a ban is an ordinary loss", "advance", "final=event.banned", "final=False", "committing"),
    fault(
        "orphans back at once",
        "settlement",
        "    if state.leases.orphans and state.step >= state.orphans_until:",
        "    if state.leases.orphans:",
        "facts",
    ),
    fault("nobody is ever silent", "conduct", "    conduct.silent = True\n", "", "conduct"),
    fault("quotas are never lifted", "conduct", "    state.is_lifted = is_late\n", "", "conduct"),
    fault(
        "a full disk is asked again at once",
        "committing",
        '            return []\n        case "refused"',
        '            return [e.Persist(round_.record, 0.0, 1)]\n        case "refused"',
        "committing",
    ),
    fault("nobody is evicted", "advance", "if state.now - member.heard_at > LOST_S", "if False", "reports"),
    fault("short rounds are soon sat out", "state", "or self.now < conduct.out_to", "", "conduct"),
    fault(
        "whom too few are left without is waited for no longer than anybody",
        "watching",
        "            wait_s = max(wait_s, took_s + remake_s(state, round_, open_))",
        "            pass",
        "reducing",
    ),
    fault(
        "whom too few are left without is waited for, however long",
        "watching",
        "            wait_s = max(wait_s, took_s + remake_s(state, round_, open_))",
        "            continue",
        "reducing",
    ),
    fault(
        "whom the others cannot do without is dropped",
        "conduct",
        "if not others or _takes_too_long(state, others, sum(paces.values())):",
        "if not others:",
        "reducing",
    ),
    fault(
        "who takes back its offer is in the next round", "offers", "        _miss_less(state, round_)\n", "", "offers"
    ),
    fault("nobody was late, and all wait longer", "offers", "+= bool(round_.waiting)", "+= 1", "offers"),
)
