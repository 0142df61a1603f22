"""What a run can be, and what may follow what: the table is executed, and nothing goes past it."""

import ast
from collections.abc import Iterator

import pytest

from accounts.models import Person
from runs.models import Run
from runs.states import MOVES, Why, move
from tests.runs.factories import draft
from tests.test_house import ROOT, our_files

CASES = [(why, before) for why in Why for before in Run.State]
WRITES = {"update", "create", "get_or_create", "update_or_create", "Run"}


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


def written_states() -> Iterator[str]:
    """Where something is given a state of `Run.State`, as an argument of a write or by assignment."""
    for path in our_files(ROOT / "platform"):
        if path.suffix != ".py" or path.parent.name == "migrations" or path.name == "states.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name_of(node.func) in WRITES:
                values = [word.value for word in node.keywords if word.arg == "state"]
            elif isinstance(node, ast.Assign) and any(_name_of(target) == "state" for target in node.targets):
                values = [node.value]
            else:
                continue
            yield from (f"{path.name}:{node.lineno}" for value in values if "Run.State." in ast.unparse(value))


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_no_other_place_writes_a_runs_state() -> None:
    assert list(written_states()) == []
