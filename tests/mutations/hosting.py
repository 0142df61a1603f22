"""Faults of hosting: claims, letters, what a host does with a peer, and the sockets at the other end."""

from tests.mutations.mutation import Mutation

TESTS = "tests/coordination/"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    """A mutation of one of the site's files, and the tests that are to notice it."""
    return Mutation(
        name, f"platform/coordination/{file}.py", before, after, tuple(f"{TESTS}test_{test}" for test in tests)
    )


FREE = "Head.objects.filter(free, run__in="
MINE = "    mine = Head.objects.filter(run=run, owner=owner, fence=fence)"
LOADED = "            host = Host(run, holding, await in_thread(store.load)(run, holding.fence), self.quarantine)"

HOSTING: tuple[Mutation, ...] = (
    fault(
        "an old socket ends the new session",
        "host",
        "            if self.channels.get(said.peer) == said.channel:",
        "            if said.peer in self.channels:",
        "host_peers.py",
    ),
    fault(
        "who broke a host is heard again at once",
        "host",
        "        if rest_s:\n",
        "        if False:\n",
        "host_peers.py",
    ),
    fault(
        "a hello is judged by an older look",
        "host",
        " if looks < self._looks}",
        "}",
        "host_peers.py",
    ),
    fault("a ban is told of as a loss", "host", "e.Lost(peer, banned=True)", "e.Lost(peer)", "host_peers.py"),
    fault(
        "a host speaks whose claim is over",
        "host",
        "        if not self.holding.is_held():\n            return []",
        "        if False:\n            return []",
        "host.py::TestTheClaim",
    ),
    fault(
        "a state that is half changed goes on",
        "host",
        "                raise Faulty(sender_of(event)) from error",
        "                log.warning('%s', error)",
        "host_peers.py",
    ),
    fault(
        "the claim is not renewed while the state loads",
        "hosting",
        LOADED,
        f"            keeping.cancel()\n{LOADED}\n            keeping = asyncio.create_task(holding.keep())",
        "host.py::TestTheClaim::test_is_renewed_while_the_state_is_loaded",
    ),
    fault(
        "a run that fails is claimed again at once",
        "hosting",
        " and time.monotonic() >= self.rest_until.get(run.run_id, 0.0):",
        ":",
        "bad_runs.py::test_a_run_that_cannot_be_loaded_rests_and_others_have_their_hosts",
    ),
    fault(
        "a bad message rests its run",
        "hosting",
        "            if fault.peer is None:",
        "            if True:",
        "host_peers.py",
    ),
    fault(
        "a claim is taken from its owner",
        "claims",
        FREE,
        "Head.objects.filter(run__in=",
        "claims.py::TestContract::test_the_first_claim_wins_and_holds",
    ),
    fault(
        "two hosts have one fence",
        "claims",
        'update(fence=F("fence") + 1,',
        'update(fence=F("fence"),',
        "claims.py::TestContract::test_a_claim_expires_and_the_fence_rises_by_one_each_time",
    ),
    fault(
        "any fence renews a claim",
        "claims",
        MINE,
        MINE.replace(", fence=fence", ""),
        "claims.py::TestContract::test_a_claim_is_renewed_by_its_owner_alone",
    ),
    fault(
        "anybody releases a claim",
        "claims",
        "    Head.objects.filter(run=run, owner=owner, fence=fence).update(",
        "    Head.objects.filter(run=run).update(",
        "claims.py::TestContract::test_only_the_owner_releases",
    ),
    fault(
        "an offence is never forgotten",
        "quarantine",
        " and now - before.until < FORGET_S else 0",
        " else 0",
        "doorway.py",
    ),
    fault(
        "strangers wait without end",
        "doorway",
        " if len(self._waiting) > STRANGERS else None",
        " if False else None",
        "doorway.py",
    ),
    fault(
        "every socket asks the database",
        "lookout",
        "            await asyncio.sleep(HURRY_S)\n",
        "",
        "lookout.py",
    ),
    fault("an older host is believed", "following", "        if fence < known or (", "        if (", "following.py"),
    fault(
        "a new socket is a new budget",
        "allowances",
        "self._known.pop((peer, run), None) or Allowance(",
        "Allowance(",
        "allowances.py",
    ),
    fault(
        "a machine says as much as it likes",
        "consumers",
        "        if self.credential is not None and not self.allowance.take(len(data), time.monotonic()):",
        "        if False:",
        "consumer_limits.py::TestBudgets",
    ),
    fault(
        "a credential is for every run",
        "consumers",
        "        if self.credential is None or not self.credential.covers(RunId(run)):",
        "        if self.credential is None:",
        "consumers.py::TestWhatIsRefused",
    ),
    fault(
        "a browser's page may dial",
        "consumers",
        '        if any(name == b"origin" for name, _ in scope["headers"]):',
        "        if False:",
        "consumers.py::TestHandshake::test_a_page_in_a_browser",
    ),
    fault(
        "a run that is not open is entered",
        "consumers",
        "                require_open(run)\n",
        "",
        "consumers.py::TestHandshake::test_a_run_that_was_taken_back",
    ),
    fault(
        "a new socket replaces itself",
        "consumers",
        ' or self.is_over or note["by"] == self.channel_name:',
        " or self.is_over:",
        "consumer_limits.py::TestSessions",
    ),
    fault(
        "a peer's end is told of again",
        "consumers",
        "        self.is_over = True\n        self._is_known()",
        "        self._is_known()",
        "consumers.py::TestMessages",
    ),
)
