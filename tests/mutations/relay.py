"""Faults in a relay: which messages it acts on, and the log that it keeps."""

from tests.mutations.mutation import Mutation

CORE, LOG = "peer_agent/protocol/relay/", "peer_agent/averaging/update_log.py"
CORE_TESTS, LOG_TESTS = "tests/protocol/relay/", ("tests/averaging/test_update_log.py",)


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"{CORE}{file}.py", before, after, tuple(f"{CORE_TESTS}test_{test}.py" for test in tests))


def log(name: str, before: str, after: str) -> Mutation:
    return Mutation(name, LOG, before, after, LOG_TESTS)


FENCE = '    if getattr(message, "fence", state.fence) < state.fence and not isinstance(message, OpenCommit):'
NEXT = "    if index == keeper.appending + 1 and index <= keeper.index + APPENDS_AHEAD:"
ORDER = "    order = [copy.entry.reducer, *others] if copy.entry.reducer in known else others"
GIVE = "            if keeps and message.run == state.run:\n                return [e.GiveSpan("
NAMED = "if (held.step, held.attempt, held.span, held.root) in named:"

RELAY: tuple[Mutation, ...] = (
    fault("words of a host that is gone are heeded", "advance", FENCE, "    if False:", "advance"),
    fault(
        "a commit of a host that is gone is not heard",
        "advance",
        FENCE,
        FENCE.replace(" and not isinstance(message, OpenCommit)", ""),
        "keeping",
    ),
    fault(
        "a plan of a host that is gone is followed", "advance", " or plan.place.fence < state.fence:", ":", "advance"
    ),
    fault(
        "another run's bytes are given", "advance", GIVE, GIVE.replace(" and message.run == state.run", ""), "advance"
    ),
    fault(
        "a page is never acknowledged", "advance", " if is_page or is_late else []", " if is_late else []", "advance"
    ),
    fault("a gap is written over", "keeping", NEXT, NEXT.replace("index == keeper.appending + 1 and ", ""), "keeping"),
    fault(
        "a record that was not written counts as held",
        "keeping",
        "        keeper.appending = keeper.index\n    if not event.forks",
        "        pass\n    if not event.forks",
        "keeping",
    ),
    fault(
        "what a snapshot covers is copied",
        "keeping",
        "        if lack.index > keeper.covered:",
        "        if True:",
        "keeping",
    ),
    fault(
        "a damaged span is asked of its reducer alone", "keeping", ORDER, "    order = [copy.entry.reducer]", "keeping"
    ),
    fault("a copy is given up", "keeping", "        copy.asked.clear()\n", "", "keeping"),
    fault(
        "a copy that came too late stays",
        "keeping",
        "[e.Forget(keeper.keep_after)] if event.index <= keeper.keep_after else []",
        "[]",
        "keeping",
    ),
    fault(
        "after a restart nothing is copied",
        "keeping",
        "    keeper.scanned = max(keeper.covered, greeting.snapshot.index)\n",
        "",
        "keeping",
    ),
    log("a record need not follow the last one", "        if record.previous != head.digest:", "        if False:"),
    log(
        "two records of one index are the same", "            if self._is_same(record, sealed):", "            if True:"
    ),
    log(
        "an older branch replaces the log", "        if index < 1 or record.fence <= ", "        if index < 1 or -1 == "
    ),
    log("a branch that began earlier is joined", "        if record.previous != before:", "        if False:"),
    log(
        "averages of a lost branch stay",
        "                span.unlink(missing_ok=True)\n\n    def _settle",
        "                pass\n\n    def _settle",
    ),
    fault(
        "a log that is ahead is kept to itself",
        "keeping",
        "    is_ahead = greeting.index < keeper.index",
        "    is_ahead = False",
        "keeping",
    ),
    fault(
        "a branch is searched for in one place",
        "keeping",
        "max(STEP_BACK, 2 * keeper.step_back)",
        "STEP_BACK",
        "keeping",
    ),
    log(
        "a tentative span needs no root",
        NAMED,
        "if (held.step, held.attempt, held.span) in {place[:3] for place in named}:",
    ),
    log(
        "bytes go that no snapshot covers",
        ' or int(path.stem.split("-")[0]) > keep_after:',
        ":",
    ),
    log("a fetched span may hold anything", "        if leaves is None:", "        if False:"),
)
