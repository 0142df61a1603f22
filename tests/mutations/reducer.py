"""Faults in a reducer: which peer may send for a slot, which bytes it accepts, and when a chunk closes."""

from tests.mutations.mutation import Mutation

CORE, ARITHMETIC = "peer_agent/protocol/relay/", "peer_agent/averaging/reducer.py"
CORE_TESTS, ARITHMETIC_TESTS = "tests/protocol/relay/", ("tests/averaging/test_reducer.py",)


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"{CORE}{file}.py", before, after, tuple(f"{CORE_TESTS}test_{test}.py" for test in tests))


def sums(name: str, before: str, after: str) -> Mutation:
    return Mutation(name, ARITHMETIC, before, after, ARITHMETIC_TESTS)


SPEAKER = "slots[slot].peer == peer and slot not in attempt.refused"
CLOSES = "            if has_quorum and not self._awaited[column] and not self._closed[column]:"
VOIDED = "attempt is not None and _is_of_round(attempt.place, place) and attempt.place <= place"
LIST = "        if len(leaves) != self.grid.chunks or root_of(leaves) != self.plan.slots[slot].root:"
HAS = "    if attempt.coverage.has(event.slot, event.chunk):"

REDUCER: tuple[Mutation, ...] = (
    fault("anybody speaks for a slot", "reducing", SPEAKER, "slot not in attempt.refused", "reducing"),
    fault("a refused slot is heard on", "reducing", SPEAKER, "slots[slot].peer == peer", "reducing"),
    fault(
        "a plan is taken up twice",
        "reducing",
        "    if plan.place <= reducer.newest:",
        "    if plan.place < reducer.newest:",
        "reducing",
    ),
    fault(
        "a plan that was void is taken up",
        "reducing",
        "    reducer.newest = max(reducer.newest, place)\n",
        "",
        "reducing",
    ),
    fault(
        "an older void ends a later attempt",
        "reducing",
        VOIDED,
        VOIDED.replace(" and attempt.place <= place", ""),
        "reducing",
    ),
    fault(
        "a new host finds the old attempt open",
        "reducing",
        "    if attempt is not None and greeting.fence > attempt.place.fence:",
        "    if False:",
        "reducing",
    ),
    fault("chunks need no leaves", "reducing", "    if frame.slot not in attempt.leaves:", "    if False:", "reducing"),
    fault("a chunk counts twice", "reducing", HAS, "    if False:", "reducing"),
    fault(
        "a lost word about a span is not repeated",
        "reducing",
        "        actions += _again(attempt, now)\n",
        "",
        "reducing",
    ),
    fault(
        "a chunk closes without a quorum",
        "closing",
        "tokens and 100 * tokens >= ",
        "tokens or 100 * tokens >= ",
        "closing",
    ),
    fault("nobody is waited for", "closing", CLOSES, CLOSES.replace("not self._awaited[column] and ", ""), "closing"),
    fault(
        "a slot that was dropped comes back",
        "closing",
        "not (self._dropped[slot] or self._closed[column])",
        "not self._closed[column]",
        "closing",
    ),
    fault(
        "what comes late is taken into a closed chunk",
        "closing",
        "not (self._dropped[slot] or self._closed[column])",
        "not self._dropped[slot]",
        "closing",
    ),
    fault("nothing is ever late", "closing", "places[due <= since_plan_s]", "places[:0]", "closing"),
    fault("whoever is last is late", "closing", "places[due <= since_plan_s]", "places", "closing"),
    fault(
        "a reducer that slept finds everybody late",
        "reducing",
        "        attempt.slept_s += gap\n",
        "        pass\n",
        "reducing",
    ),
    sums("a chunk that comes again is added again", "        if not again:", "        if True:"),
    sums("bytes need not be those of the leaf", "        if leaf != committed:", "        if False:"),
    sums("leaves need no root", LIST, "        if len(leaves) != self.grid.chunks:"),
    sums("a small norm may have large values", "rel_tol=NORM_TOLERANCE)", "rel_tol=1.0)"),
    sums("a term may be infinite", "        if leaf.digest == committed.digest and not is_small:", "        if False:"),
)
