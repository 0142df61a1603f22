"""The table of phase changes is complete and closed, and every phase change follows it."""

import ast
from itertools import product
from pathlib import Path

import pytest

from peer_agent.protocol import trainer
from peer_agent.protocol.trainer.state import Phase, new_trainer
from peer_agent.protocol.trainer.transitions import IGNORED, TRANSITIONS, Cause, IllegalMove, ignores, move
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import ME

PAIRS = list(product(Phase, Cause))


def at(phase: Phase) -> trainer.state.TrainerState:
    core = new_trainer(RUN, ME, 0.0, 1)
    core.phase = phase
    return core


@pytest.mark.parametrize(("phase", "cause"), PAIRS, ids=[f"{phase}, {cause.name}" for phase, cause in PAIRS])
def test_every_phase_moves_or_is_named_as_ignoring(phase: Phase, cause: Cause) -> None:
    is_ignored = phase is Phase.GONE or phase in IGNORED[cause]
    assert is_ignored != ((phase, cause) in TRANSITIONS)
    assert ignores(at(phase), cause) == is_ignored


@pytest.mark.parametrize(("phase", "cause"), PAIRS, ids=[f"{phase}, {cause.name}" for phase, cause in PAIRS])
def test_no_move_is_made_that_is_not_in_the_table(phase: Phase, cause: Cause) -> None:
    for after in Phase:
        core = at(phase)
        if after in TRANSITIONS.get((phase, cause), ()):
            move(core, cause, after)
            assert core.phase is after
        else:
            with pytest.raises(IllegalMove):
                move(core, cause, after)


def test_a_cause_that_the_tables_forget_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TRANSITIONS, (Phase.ACCUMULATE, Cause.CUT))
    with pytest.raises(IllegalMove):
        ignores(at(Phase.ACCUMULATE), Cause.CUT)


def test_the_phase_is_changed_in_one_place() -> None:
    places = []
    for path in Path(trainer.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            places += [path.name for target in targets if isinstance(target, ast.Attribute) and target.attr == "phase"]
    assert places == ["transitions.py"]
