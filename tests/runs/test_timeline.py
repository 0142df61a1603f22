"""What a run's timeline remembers for others."""

from runs.lifecycle.services import pause_run, resume_run
from runs.models import Run
from runs.timeline import resumed_at


def test_when_a_run_was_let_go_on_last(run: Run) -> None:
    assert resumed_at(run) is None
    pause_run(run=run)
    assert resumed_at(run) is None
    for _ in range(2):
        resume_run(run=run)
        pause_run(run=run)
    newest = run.activity.filter(kind="resumed").order_by("-at").first()
    assert newest is not None
    assert resumed_at(run) == newest.at
