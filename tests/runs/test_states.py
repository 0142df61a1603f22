"""A run's states: every transition in the table is performed, and no code writes a state without using the table."""

import ast
import re
from collections.abc import Iterator

import pytest

from accounts.models import Person
from runs.lifecycle.services import pause_run, resume_run
from runs.models import Run
from runs.states import MOVES, Why, move
from runs.timeline import resumed_at
from tests.runs.factories import draft
from tests.test_house import ROOT, our_files

CASES = [(why, before) for why in Why for before in Run.State]
WRITES = {"update", "create", "get_or_create", "update_or_create", "Run"}
OF_ANOTHER = re.compile(r"(?!Run\.)[A-Z]\w+\.State\b")


@pytest.mark.parametrize(("why", "before"), CASES)
def test_a_run_goes_where_the_table_leads_and_nowhere_else(organizer: Person, why: Why, before: Run.State) -> None:
    run = draft(organizer, state=before, wanted=Run.Wanted.NOTHING)
    may = before in MOVES[why].before
    assert move(run, why, waiting_for="a reason") is may
    assert run.state == (MOVES[why].after if may else before)
    assert run.waiting_for == ("a reason" if may else "")
    assert run.wanted == ((MOVES[why].wanted or Run.Wanted.NOTHING) if may else Run.Wanted.NOTHING)


def test_a_run_that_is_to_end_is_not_paused(organizer: Person) -> None:
    run = draft(organizer, state=Run.State.OPEN, wanted=Run.Wanted.FINISHED)
    assert not move(run, Why.PAUSED)
    assert (run.state, run.wanted) == (Run.State.OPEN, Run.Wanted.FINISHED)


def test_of_two_that_move_a_run_at_once_one_does(organizer: Person) -> None:
    run = draft(organizer, state=Run.State.PREPARING)
    again = Run.objects.get(pk=run.pk)
    assert move(run, Why.PREPARED)
    assert not move(again, Why.PREPARED)
    assert again.state == Run.State.OPEN, "it knows what is so now"


def written_states(code: str) -> Iterator[int]:
    """Yield the lines that write a state, except for models other than `Run`."""
    tree = ast.parse(code)
    types = {a.arg: ast.unparse(a.annotation) for a in ast.walk(tree) if isinstance(a, ast.arg) and a.annotation}
    for node in ast.walk(tree):
        for value in map(ast.unparse, _written(node)):
            if not OF_ANOTHER.match(types.get(value, value)):
                yield node.lineno  # type: ignore[attr-defined]


def _written(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the values given to `state` as an argument, a default or an assignment."""
    if isinstance(node, ast.Call) and _name_of(node.func) in WRITES:
        for word in node.keywords:
            if word.arg == "state":
                yield word.value
            elif isinstance(word.value, ast.Dict):
                keys = [ast.unparse(key) if key else "" for key in word.value.keys]
                yield from (value for key, value in zip(keys, word.value.values, strict=True) if key == "'state'")
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]  # type: ignore[attr-defined]
            yield from (value for place, value in pairs if _is_state_of_a_row(place))


def _is_state_of_a_row(place: ast.expr) -> bool:
    return isinstance(place, ast.Attribute) and place.attr == "state" and ast.unparse(place.value) != "self"


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "code",
    [
        "rows.update(state=Run.State.OPEN)",
        "rows.update(waiting_for='', state=OPEN)",
        "Run.objects.update(state='open')",
        "Run.objects.update_or_create(pk=1, defaults={'state': OPEN})",
        "rows.update(**{'state': OPEN})",
        "Run(state=state)",
        "run.state = 'open'",
        "run.state, run.wanted = OPEN, ''",
        "def change(run, state: Run.State): rows.update(state=state)",
    ],
)
def test_a_write_is_found_however_it_is_said(code: str) -> None:
    assert list(written_states(code)) == [1]


@pytest.mark.parametrize(
    "code",
    [
        "Run.objects.filter(state=Run.State.OPEN)",
        "rows.update(state=Release.State.READY)",
        "def change(state: Publication.State): rows.update(state=state)",
        "dataset.vocab, dataset.state = 300, Dataset.State.READY",
        "self.state = state",
    ],
)
def test_what_is_no_write_of_a_run_is_passed_over(code: str) -> None:
    assert list(written_states(code)) == []


def test_no_other_place_writes_a_runs_state() -> None:
    others = {ROOT / "platform" / name for name in ("accounts", "jobs")}  # the code there does not use runs
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in our_files(ROOT / "platform")
        if path.suffix == ".py" and path.parent.name != "migrations" and path.name != "states.py"
        if others.isdisjoint(path.parents)
        for line in written_states(path.read_text())
    ]
    assert places == []


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
