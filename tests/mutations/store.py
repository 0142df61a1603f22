"""Faults in the store: the commit's transaction, lease marks, totals, coverage, reading the log, and jobs."""

from tests.mutations.mutation import Mutation

ROWS = "tests/coordination/test_store.py::"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"platform/{file}.py", before, after, tests)


STORE, WRITING, HOLDING = "coordination/store", "coordination/hosts/writer", "coordination/hosts/claims"
HEAD = "index=record.index - 1, digest=record.previous, fence=fence"
RAISED = "                await in_thread(store.raise_marks)(self.run, self.holding.fence, command.marks)"
GRANTED = "                self._answer(e.Reserved(command.marks))"
RANGE = "    first = bisect_left(ranges, start, key=lambda known: known[1])"
OURS = "entry is not None and entry.digest == digest_of(sealed)"
TOTALS, REVERSALS = "runs/ledger/totals", "tests/runs/ledger/test_reversals.py"
STANDINGS, COVERAGE = "tests/runs/ledger/test_standings.py", "tests/runs/ledger/test_records.py"
HOST = "tests/coordination/hosts/test_host.py::"
JOBS, QUEUE = "jobs/queue", "tests/jobs/test_queue.py"
LEASES = f"{QUEUE}::TestLeases"
CLAIM, WRITER = f"{HOST}TestTheClaim", f"{HOST}TestTheDatabase"

STORED: tuple[Mutation, ...] = (
    fault("credit is taken back twice", TOTALS, "rows.filter(KEPT, run=run)", "rows.filter(run=run)", REVERSALS),
    fault("totals keep what was taken back", TOTALS, "    _take(run, by_machine, by_day)\n", "", REVERSALS),
    fault(
        "a rollback leaves credit",
        STORE,
        "entry__index__gt=target.index, entry__is_undone=True",
        "entry__index__gt=target.index, entry__is_undone=False",
        "tests/coordination/hosts/test_rollbacks.py",
    ),
    fault("a deposed host commits", STORE, HEAD, HEAD.replace(", fence=fence", ""), f"{ROWS}TestCommit"),
    fault(
        "a record need not follow the head",
        STORE,
        HEAD,
        HEAD.replace(", digest=record.previous", ""),
        f"{ROWS}TestCommit",
    ),
    fault(
        "a commit is many transactions",
        STORE,
        "@transaction.atomic\ndef _add_update(",
        "def _add_update(",
        f"{ROWS}TestCommit",
    ),
    fault(
        "lost samples are leased again",
        STORE,
        "                _raise_marks(run, _marks_above(record))\n",
        "",
        f"{ROWS}TestAdopt",
    ),
    fault(
        "a lost record need not follow",
        STORE,
        "    return record if follows else None",
        "    return record",
        f"{ROWS}TestAdopt",
    ),
    fault(
        "samples are not settled",
        STORE,
        "    add_committed(run, (unit for part in record.contributions for unit in part.units))\n",
        "",
        f"{ROWS}TestSettledUnits",
    ),
    fault("another's record is ours", STORE, OURS, "entry is not None", f"{ROWS}TestCommit"),
    fault(
        "a deposed host tries again",
        STORE,
        '    return "failed" if head.fence == record.fence else "stale"',
        '    return "failed"',
        f"{ROWS}TestCommit",
    ),
    fault(
        "a deposed host grants samples",
        STORE,
        "select_for_update().filter(run=run, fence=fence)",
        "select_for_update().filter(run=run)",
        f"{ROWS}TestMarks",
    ),
    fault(
        "a mark is lowered",
        STORE,
        "        if mark > held.get((epoch, shard), 0)",
        "        if True",
        f"{ROWS}TestMarks",
    ),
    fault(
        "a log is resent without its first entry",
        "runs/ledger/records",
        "index__gte=first)",
        "index__gt=first)",
        f"{ROWS}test_records_are_said_again_in_their_order",
    ),
    fault("ranges that touch stay apart", "runs/ledger/records", RANGE, RANGE.replace("_left", "_right"), COVERAGE),
    fault(
        "other places' rows are written", "runs/ledger/records", " if (row.epoch, row.shard) in places}", "}", COVERAGE
    ),
    fault(
        "a round counts for each machine of a person",
        "runs/ledger/totals",
        "row.person_id not in counted",
        "True",
        STANDINGS,
    ),
    fault("a page of the log has all records", WRITING, "min(command.count, PAGE)", "command.count", WRITER),
    fault(
        "a host writes whose claim is over",
        HOLDING,
        "        while self.is_held():\n            try:\n                await write()",
        "        while True:\n            try:\n                await write()",
        WRITER,
    ),
    fault(
        "a host grants under marks that were not raised",
        WRITING,
        f"{RAISED}\n{GRANTED}\n",
        f"{GRANTED}\n{RAISED}\n",
        WRITER,
    ),
    fault(
        "a claim counts from the answer",
        HOLDING,
        "                self.asked_at = asked_at\n            else",
        "                self.asked_at = self.clock()\n            else",
        CLAIM,
    ),
    fault(
        "a run goes anywhere from anywhere",
        "runs/states",
        "Run.objects.filter(pk=run.pk, state__in=step.before)",
        "Run.objects.filter(pk=run.pk)",
        "tests/runs/test_states.py",
    ),
    fault(
        "a run that is to end is paused",
        "runs/states",
        "        rows = rows.exclude(wanted=Run.Wanted.FINISHED)\n",
        "        pass\n",
        "tests/runs/test_states.py",
    ),
    fault(
        "a run's state is written past the table",
        "runs/lifecycle/services",
        '    if move(run, Why.RESUMED, waiting_for=""):',
        "    if Run.objects.filter(pk=run.pk).update(state=Run.State.OPEN, wanted=Run.Wanted.OPEN):",
        "tests/runs/test_states.py",
    ),
    fault(
        "a run is published unseen",
        "runs/lifecycle/services",
        "run.dataset.state != Dataset.State.READY or seen != run.dataset.mark",
        "run.dataset.state != Dataset.State.READY",
        "tests/runs/lifecycle/test_services.py::TestOpening",
    ),
    fault(
        "data are kept that were read from another field",
        "runs/datasets/preparation",
        "if now is None or _read(now.sources()) != _read(sources):",
        "if now is None or len(now.sources()) != len(sources):",
        "tests/runs/datasets/test_preparation.py::TestDataset",
    ),
    fault(
        "a job that is requested while it runs is not done again",
        JOBS,
        "_leased(job).filter(is_wanted_again=False).delete()",
        "_leased(job).delete()",
        f"{QUEUE}::TestRequests",
    ),
    fault("a dead worker's job is left", JOBS, " | Q(state=State.RUNNING, leased_until__lt=Now())", "", LEASES),
    fault(
        "a worker whose lease is over ends another's job",
        JOBS,
        "    return Job.objects.filter(pk=job.pk, lease=job.lease, state=State.RUNNING)",
        "    return Job.objects.filter(pk=job.pk, state=State.RUNNING)",
        LEASES,
    ),
    fault(
        "a request ends the wait for a retry",
        JOBS,
        "_request(kind, key, after_s, keeps_retry=True)",
        "_request(kind, key, after_s, keeps_retry=False)",
        f"{QUEUE}::TestRequests",
    ),
    fault(
        "two heavy jobs run at once",
        "jobs/runner",
        "dict.fromkeys(Lane, 1)",
        "dict.fromkeys(Lane, 2)",
        "tests/jobs/test_lanes.py",
    ),
)
