"""Faults in the limits on strangers, in checking their work, and in choosing which proxy headers to trust."""

from tests.mutations.mutation import Mutation

SERVER, TESTS = "platform/server/", "tests/server/"
AUDITS = "tests/protocol/coordinator/round/test_audits.py"
DISPUTES = "tests/protocol/coordinator/round/test_disputed_work.py"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"{SERVER}{file}.py", before, after, tuple(f"{TESTS}test_{test}.py" for test in tests))


def proxy(name: str, before: str, after: str) -> Mutation:
    return Mutation(name, "platform/config/proxies.py", before, after, ("tests/web/http/test_rate_limits.py",))


STRANGERS: tuple[Mutation, ...] = (
    *(
        Mutation(name, "peer_agent/protocol/coordinator/round/audits.py", before, after, (AUDITS, DISPUTES))
        for name, before, after in (
            ("stale units are audited on the wrong parameters", "if done.base < state.step),", "if False),"),
            (
                "a machine may always carry gradients",
                "record.incomparable = 0 if slot.peer in seen.gradients else record.incomparable + 1",
                "record.incomparable = 0",
            ),
            ("the site is never asked", "len(chosen) < SITE_NEEDS", "len(chosen) < 99"),
            ("the site checks no dismissed accusation", " if record.evidence else []", " if False else []"),
            ("an auditor that was right audits no more", "    record.overruled |= record.accused_by.items()\n", ""),
            (
                "one false contribution of three blames a machine",
                "if failed > passed and (failed > 1",
                "if failed and (failed >= 1",
            ),
            ("bad memory never means a longer pause", "    record.faults += 1\n", ""),
            ("the site punishes again and again", "if each.number not in state.heeded:", "if True:"),
            ("a known false contribution counts again", " and index <= record.judged_index", " and False"),
            (
                "an answer about an earlier doubt ends a new one",
                "record.in_doubt and record.site_asked and record.evidence.keys() <= verdicts.keys()",
                "record.in_doubt",
            ),
            (
                "a liar that is honest while in doubt is taken for bad memory",
                "sorted(own)[-EVIDENCE:]",
                "[index]",
            ),
            ("the owner of a machine that is away is not told", "        record.notice = max(", "        _ = max("),
            ("a proof raises no alarm", "    state.alarmed_until = state.rounds + ALARM\n", ""),
        )
    ),
    Mutation(
        "an auditor never goes back a step",
        "peer_agent/trainer/auditing.py",
        "if number == len(asked.units):",
        "if False:",
        ("tests/trainer/test_auditing.py",),
    ),
    Mutation(
        "a replay goes past a rollback",
        "platform/runs/snapshots/recheck.py",
        "index__gte=since, index__lt=first",
        "index__lt=first",
        ("tests/runs/snapshots/test_recheck.py",),
    ),
    Mutation(
        "a robust step counts as exact",
        "peer_agent/protocol/coordinator/round/recording.py",
        ' and round_.rule == "mean"',
        "",
        ("tests/protocol/coordinator/round/test_recording.py",),
    ),
    Mutation(
        "an agent installs an older version",
        "peer_agent/site/upgrade.py",
        "if manifest.version < Version(__version__):",
        "if False:",
        ("tests/site/test_upgrade.py",),
    ),
    Mutation(
        "any key signs the agent",
        "peer_agent/protocol/releases.py",
        "if not any(is_signed_by(key, RELEASE, signed) for key in keys):",
        "if False:",
        ("tests/site/test_upgrade.py",),
    ),
    Mutation(
        "a name may look like another",
        "platform/accounts/services.py",
        "    if other is not None and other.username.lower() != name.lower():",
        "    if False:",
        ("tests/accounts/test_names.py",),
    ),
    Mutation(
        "strangers vote beside audited people",
        "peer_agent/protocol/coordinator/agreement/digests.py",
        "    if state.jury is not None and person not in state.jury:",
        "    if False:",
        ("tests/protocol/coordinator/agreement/test_digests.py",),
    ),
    Mutation(
        "one machine removes samples from the run",
        "peer_agent/protocol/coordinator/leases.py",
        "(len(failures) < 2 and not is_alone)",
        "False",
        ("tests/protocol/coordinator/test_leases.py",),
    ),
    Mutation(
        "a machine whose gradients are not finite gets ever more units",
        "peer_agent/protocol/coordinator/workers/leasing.py",
        " or _fails_alone(state, member):",
        ":",
        ("tests/protocol/coordinator/test_reports.py",),
    ),
    Mutation(
        "samples count as checked before they are",
        "platform/runs/ledger/totals.py",
        "entry__index__gt=known.index, entry__index__lte=index)",
        "entry__index__gt=known.index)",
        ("tests/runs/ledger/test_reversals.py",),
    ),
    fault(
        "one address takes all places",
        "stranger_limits",
        "        if address and len(self._of[address]) > self._limits.of_address:",
        "        if False:",
        "http_connections",
    ),
    fault(
        "strangers stay without end",
        "stranger_limits",
        "        elif len(self._at) > self._limits.strangers:",
        "        elif False:",
        "http_connections",
    ),
    fault(
        "whoever is behind our proxy is one",
        "stranger_limits",
        '        address = "" if is_trusted(ip) else household(ip)',
        "        address = household(ip)",
        "http_connections",
    ),
    fault(
        "a machine has links without end",
        "stranger_limits",
        "        if len(links) > PER_CREDENTIAL:",
        "        if False:",
        "websocket_connections",
    ),
    fault(
        "a head has no end", "http_connections", "                self.head_left -= len(part)\n", "", "http_connections"
    ),
    fault(
        "a long body may stand still",
        "http_connections",
        "        if self.body_bytes < limits.slowest * limits.body_s and not self.flow.read_paused:",
        "        if False:",
        "http_connections",
    ),
    fault(
        "a body's first bytes pay for all of it",
        "http_connections",
        "        self.body_bytes = 0\n        self._set_timer(limits.body_s, self._look_at_pace)",
        "        self._set_timer(limits.body_s, self._look_at_pace)",
        "http_connections",
    ),
    fault(
        "an answer that nobody reads stays",
        "http_connections",
        "        self.unread = self.loop.call_later(self.config.limits.unread_s, self.turn_out)",
        "        return",
        "http_connections",
    ),
    fault(
        "a stranger's socket says as much as it likes",
        "websocket_connections",
        "        if self.is_known or self.taken <= HANDSHAKE_BYTES:",
        "        if True:",
        "websocket_connections",
    ),
    proxy("anybody says who they are", "hops and is_trusted(str(hop)):", "hops:"),
    proxy("a visitor's own claim is believed", "hop = parsed(hops.pop())", "hop = parsed(hops.pop(0))"),
)
