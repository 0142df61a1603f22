"""Faults in hosting: claims, messages, how a host treats a peer, and the host's sockets."""

from tests.mutations.mutation import Mutation

TESTS = "tests/coordination/"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"platform/coordination/{file}.py", before, after, tuple(f"{TESTS}{test}" for test in tests))


FREE = "Head.objects.filter(free, run__in="
MINE = "    mine = Head.objects.filter(run=run, owner=owner, fence=fence)"
LOADED = "            host = Host(run, holding, await in_thread(store.load)(run, holding.fence), self.quarantine)"

HOSTING: tuple[Mutation, ...] = (
    fault(
        "an old socket ends the new session",
        "hosts/host",
        "        if self.channels.get(lost.peer) == lost.channel:",
        "        if lost.peer in self.channels:",
        "hosts/test_host.py",
    ),
    fault(
        "who broke a host is heard again at once",
        "hosts/host",
        "        if rest_s:\n",
        "        if False:\n",
        "hosts/test_host.py",
    ),
    fault(
        "a hello is judged by an older look",
        "hosts/host",
        " if looks < self._looks}",
        "}",
        "hosts/test_host.py",
    ),
    fault(
        "a ban is told of as a loss",
        "hosts/host",
        "e.Lost(peer, banned=True)",
        "e.Lost(peer)",
        "hosts/test_host.py",
    ),
    fault(
        "a host speaks whose claim is over",
        "hosts/host",
        "        if not self.holding.is_held():\n            return []",
        "        if False:\n            return []",
        "hosts/test_host.py::TestTheClaim",
    ),
    fault(
        "a state that is half changed goes on",
        "hosts/host",
        "                raise Faulty(sender_of(event)) from error",
        "                log.warning('%s', error)",
        "hosts/test_host.py",
    ),
    fault(
        "the claim is not renewed while the state loads",
        "hosts/supervisor",
        LOADED,
        f"            keeping.cancel()\n{LOADED}\n            keeping = asyncio.create_task(holding.keep())",
        "hosts/test_host.py::TestTheClaim::test_is_renewed_while_the_state_is_loaded",
    ),
    fault(
        "a run that fails is claimed again at once",
        "hosts/supervisor",
        " and time.monotonic() >= self.rest_until.get(run.run_id, 0.0):",
        ":",
        "hosts/test_supervisor.py::test_unloadable_run_rests_while_other_runs_have_hosts",
    ),
    fault(
        "a bad message rests its run",
        "hosts/supervisor",
        "            if fault.peer is None:",
        "            if True:",
        "hosts/test_host.py",
    ),
    fault(
        "a claim is taken from its owner",
        "hosts/claims",
        FREE,
        "Head.objects.filter(run__in=",
        "hosts/test_claims.py::TestContract::test_the_first_claim_wins_and_holds",
    ),
    fault(
        "two hosts have one fence",
        "hosts/claims",
        'Greatest(F("fence") + 1, ',
        'Greatest(F("fence"), ',
        "hosts/test_claims.py::TestContract::test_a_claim_expires_and_the_fence_rises_by_one_each_time",
    ),
    fault(
        "any fence renews a claim",
        "hosts/claims",
        MINE,
        MINE.replace(", fence=fence", ""),
        "hosts/test_claims.py::TestContract::test_a_claim_is_renewed_by_its_owner_alone",
    ),
    fault(
        "anybody releases a claim",
        "hosts/claims",
        "    Head.objects.filter(run=run, owner=owner, fence=fence).update(",
        "    Head.objects.filter(run=run).update(",
        "hosts/test_claims.py::TestContract::test_only_the_owner_releases",
    ),
    fault(
        "an offence is never forgotten",
        "hosts/quarantine",
        " and now - before.until < FORGET_S else 0",
        " else 0",
        "hosts/test_quarantine.py",
    ),
    fault(
        "strangers wait without end",
        "sockets/limits",
        " if len(self._waiting) > STRANGERS else None",
        " if False else None",
        "sockets/test_limits.py",
    ),
    fault(
        "every socket asks the database",
        "sockets/polling",
        "            await asyncio.sleep(LEAST_PAUSE_S)\n",
        "",
        "sockets/test_polling.py",
    ),
    fault(
        "an older host is believed",
        "sockets/polling",
        "        if fence < known or (",
        "        if (",
        "sockets/test_polling.py",
    ),
    fault(
        "a new socket is a new budget",
        "sockets/limits",
        "return self._known.setdefault((peer, run), full)",
        "return full",
        "sockets/test_limits.py",
    ),
    fault(
        "a machine says as much as it likes",
        "sockets/consumer",
        "        if self.credential is not None and not self.allowance.spend(len(data), time.monotonic()):",
        "        if False:",
        "sockets/test_limits.py::TestBudgets",
    ),
    fault(
        "a credential is for every run",
        "sockets/consumer",
        "        if self.credential is None or not self.credential.covers(RunId(run)):",
        "        if self.credential is None:",
        "sockets/test_consumer.py::TestWhatIsRefused",
    ),
    fault(
        "a browser's page may dial",
        "sockets/consumer",
        '        if any(name == b"origin" for name, _ in scope["headers"]):',
        "        if False:",
        "sockets/test_consumer.py::TestHandshake::test_a_page_in_a_browser",
    ),
    fault(
        "a run that is not open is entered",
        "sockets/consumer",
        "                require_open(run)\n",
        "",
        "sockets/test_consumer.py::TestHandshake::test_run_that_was_taken_back",
    ),
    fault(
        "a new socket replaces itself",
        "sockets/consumer",
        " or self.is_over or newer == self.channel_name:",
        " or self.is_over:",
        "sockets/test_limits.py::TestSessions",
    ),
    fault(
        "a peer's end is told of again",
        "sockets/consumer",
        "        self.is_over = True\n        self._is_known()",
        "        self._is_known()",
        "sockets/test_consumer.py::TestMessages",
    ),
)
