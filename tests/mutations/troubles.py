"""Faults in how problems are displayed: their timing, their order, and the hiding of those caused by other problems."""

from tests.mutations.mutation import Mutation

KEEPER = "peer_agent/protocol/errors/troubles.py"
KEPT = ("tests/protocol/errors/test_troubles.py",)

TROUBLES: tuple[Mutation, ...] = (
    Mutation(
        "a trouble is shown at once",
        KEEPER,
        "    return now - trouble.since >= (entry.shown_after_s if entry is not None else 0.0)",
        "    return now - trouble.since >= 0.0",
        KEPT,
    ),
    Mutation(
        "a trouble that begins again is young",
        KEEPER,
        "Trouble(fault, now if known is None else known.since)",
        "Trouble(fault, now)",
        KEPT,
    ),
    Mutation(
        "what follows from a trouble is shown too",
        KEEPER,
        "if not explained_by(code, old)]",
        "if not explained_by(code, ())]",
        KEPT,
    ),
    Mutation(
        "a trouble that is young hides others",
        KEEPER,
        "if not explained_by(code, old)]",
        "if not explained_by(code, self._lasting)]",
        KEPT,
    ),
    Mutation(
        "only the nearest cause explains",
        KEEPER,
        "    for one in found:\n",
        "    for one in found[:1]:\n",
        KEPT,
    ),
    Mutation(
        "what matters least comes first",
        KEEPER,
        "_WORST_FIRST = tuple(reversed(Severity))",
        "_WORST_FIRST = tuple(Severity)",
        KEPT,
    ),
    Mutation(
        "troubles have no maximum",
        KEEPER,
        "        if len(self._lasting) > MOST_TROUBLES:",
        "        if len(self._lasting) > 10 * MOST_TROUBLES:",
        KEPT,
    ),
    Mutation(
        "the doctor tells people what follows",
        "peer_agent/cli.py",
        "for check in checks or [] if not check.explained_by]",
        "for check in checks or []]",
        ("tests/agent/test_doctor.py::test_people_are_not_told_what_follows_and_programs_are",),
    ),
    Mutation(
        "one site that is away explains every relay",
        "peer_agent/doctor.py",
        'if other.site in ("", check.site)}',
        "}",
        ("tests/agent/test_doctor.py::test_what_is_wrong_with_one_site_explains_nothing_of_another",),
    ),
    Mutation(
        "a warning fails the doctor",
        "peer_agent/doctor.py",
        '"fail" if severity is Severity.HIGH else "warn"',
        '"fail" if severity is not Severity.LOW else "warn"',
        ("tests/agent/test_doctor.py",),
    ),
    Mutation(
        "what its cause hides is called solved",
        "peer_agent/display/lines.py",
        "if not self.troubles.lasts(code)]",
        "if code not in {trouble.code for trouble in shown}]",
        ("tests/display/test_lines.py",),
    ),
    Mutation(
        "the page does not say what is wrong",
        "peer_agent/display/terminal.py",
        "now.troubles[:MOST_TROUBLES]",
        "now.troubles[:0]",
        ("tests/display/test_status.py",),
    ),
    Mutation(
        "an agent does not look at its relays",
        "peer_agent/trainer/observer.py",
        "missing = set(links.addresses) - set(links.reached)",
        "missing = set(links.addresses) - set(links.addresses)",
        ("tests/trainer/test_observer.py",),
    ),
    Mutation(
        "a trouble that became another one stays",
        "peer_agent/trainer/observer.py",
        "if before and (fault is None or fault.code != before):",
        "if before and fault is None:",
        ("tests/trainer/test_observer.py",),
    ),
    Mutation(
        "bytes that have come are missed for ever",
        "peer_agent/protocol/trainer/following.py",
        "    return [Ended((codes.UPDATE_MISSING,))] if was_missing else []",
        "    return [] if was_missing else []",
        ("tests/protocol/trainer/test_following.py",),
    ),
    Mutation(
        "a state that is loaded again ends nothing",
        "peer_agent/protocol/trainer/following.py",
        "    return [Ended(LOADING_ENDS), *_arrive(",
        "    return [*_arrive(",
        ("tests/protocol/trainer/test_following.py",),
    ),
    Mutation(
        "a program reads the status for a title",
        "platform/web/http/faults.py",
        "    return fault.title if fault.code in CATALOGUE else",
        "    return fault.title if not fault.code else",
        ("tests/web/http/test_faults.py",),
    ),
    Mutation(
        "a run without a relay is fine",
        "platform/web/run_picture/alerts.py",
        "    return is_driven and not any(",
        "    return is_driven and any(",
        ("tests/web/run_picture/test_alerts.py",),
    ),
    Mutation(
        "a value of the recipe is blamed on nothing",
        "platform/web/pages/runs/forms/new_run.py",
        "    if isinstance(problem, OutOfBounds):",
        "    if isinstance(problem, ValueError):",
        ("tests/web/pages/runs/test_run.py",),
    ),
    Mutation(
        "an error's page says nothing of where it follows from",
        "scripts/generate_docs.py",
        "if entry.depends_on else",
        "if not entry.depends_on else",
        ("tests/protocol/test_documents.py",),
    ),
)
