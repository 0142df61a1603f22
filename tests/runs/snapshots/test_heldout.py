"""The held-out loss: measured once, for the newest snapshot, when no release is being made."""

from collections.abc import Sequence
from typing import Any

import pytest

from jobs import queue
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Failed, Later
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.masked_lm import MaskedLM
from runs import selectors, storage
from runs.background import BUSY_S
from runs.models import Dataset, Release, Run, Snapshot
from runs.processes import ChildStopped
from runs.releases.card_facts import release_facts
from runs.snapshots import heldout
from runs.snapshots.heldout import measure_newest
from tests.jobs.requests import do

pytestmark = pytest.mark.django_db


@pytest.fixture
def with_text(run: Run) -> Run:
    Dataset.objects.update(heldout={"digest": "e" * 64, "tokens": 100})
    return Run.objects.select_related("dataset", "head").get(pk=run.pk)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace child processes with a function that answers at once. Return their arguments."""
    asked: list[list[str]] = []

    def run_child(arguments: Sequence[str], **_: Any) -> dict[str, Any]:
        asked.append(list(arguments))
        prompts = [word.removeprefix("--prompt=") for word in arguments if word.startswith("--prompt=")]
        written = [f"{prompt} light work." for prompt in prompts[:2]]  # there was no time for the third prompt
        return {"loss": 5.25, "units": 100, "figures": {"accuracy": 0.25}, "written": written}

    monkeypatch.setattr(heldout, "run_child", run_child)
    return asked


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run_child(arguments: Sequence[str], **_: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(heldout, "run_child", run_child)


def snapshot(run: Run, step: int) -> Snapshot:
    facts = {"digest": f"{step:064x}", "state_digest": "1" * 16, "file": f"{step + 1000:064x}", "size": 5}
    return Snapshot.objects.create(run=run, index=step, step=step, state=Snapshot.State.VERIFIED, **facts)


def losses(run: Run) -> list[float | None]:
    return list(run.snapshots.order_by("index").values_list("heldout_loss", flat=True))


def test_only_the_newest_snapshot_is_measured(with_text: Run, children: list[list[str]]) -> None:
    snapshot(with_text, 10)
    newest = snapshot(with_text, 20)
    assert measure_newest(with_text.pk) is None
    assert losses(with_text) == [None, None, 5.25]
    newest.refresh_from_db()
    assert newest.heldout_figures == {"accuracy": 0.25}
    (command,) = children
    assert command[0] == "evaluate"
    paths = [storage.snapshot_path(with_text, newest.file), storage.heldout_path(with_text.dataset)]
    assert command[2:4] == [str(path) for path in paths]


def test_what_follows_is_asked_once_the_figure_is_there(with_text: Run, children: list[list[str]]) -> None:
    snapshot(with_text, 10)
    seen: list[list[float | None]] = []
    for _ in range(2):
        measure_newest(with_text.pk, lambda run: seen.append(losses(run)))
    assert seen == [[None, 5.25]]


@pytest.mark.parametrize(
    ("prompts", "written"),
    [
        ("", [["", " light work."]]),
        ("Many hands", [["Many hands", "Many hands light work."]]),
        ("a\nb\nc\nd", [["a", "a light work."], ["b", "b light work."]]),
    ],
)
def test_it_continues_the_organizers_lines(
    with_text: Run, children: list[list[str]], prompts: str, written: list[list[str]]
) -> None:
    Run.objects.update(prompts=prompts)
    newest = snapshot(with_text, 10)
    measure_newest(with_text.pk)
    newest.refresh_from_db()
    assert newest.written == written
    (command,) = children
    assert command[4:6] == ["--data", str(storage.prepared_folder(with_text.dataset))]
    assert len(command) == 6 + min(3, max(1, len(prompts.splitlines())))


def test_written_text_is_bounded_and_fits_every_database(with_text: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL cannot store NUL, and an untrained model may write any byte."""
    made = {"loss": 5.25, "units": 100, "figures": {}, "written": ["a\0b" + "x" * 5000]}
    monkeypatch.setattr(heldout, "run_child", lambda *_, **__: made)
    newest = snapshot(with_text, 10)
    measure_newest(with_text.pk)
    newest.refresh_from_db()
    ((_, text),) = newest.written
    assert text.startswith("a\ufffdb")
    assert len(text) == heldout.LONGEST
    assert newest.heldout_loss == 5.25


def test_what_does_not_write_is_asked_for_nothing(with_text: Run, children: list[list[str]]) -> None:
    Run.objects.update(recipe=encode_recipe(MaskedLM()).decode())
    newest = snapshot(with_text, 10)
    measure_newest(with_text.pk)
    newest.refresh_from_db()
    assert newest.written == []
    assert len(children[0]) == 4


def test_doing_it_twice_does_it_once(with_text: Run, children: list[list[str]]) -> None:
    snapshot(with_text, 10)
    assert [measure_newest(with_text.pk) for _ in range(2)] == [None, None]
    assert len(children) == 1


def test_first_parameters_and_texts_without_heldout_are_skipped(run: Run, children: list[list[str]]) -> None:
    snapshot(run, 10)
    assert measure_newest(run.pk) is None
    Dataset.objects.update(heldout={"digest": "e" * 64, "tokens": 100})
    Snapshot.objects.filter(step=10).delete()
    assert measure_newest(run.pk) is None
    assert children == []


def test_a_release_comes_first(with_text: Run, children: list[list[str]]) -> None:
    snapshot(with_text, 10)
    Release.objects.create(run=with_text)
    queue.put(Kind.MAKE_RELEASE, with_text.pk)
    assert do(Kind.MEASURE_HELDOUT, with_text.pk) == Later(BUSY_S)
    assert children == []
    Job.objects.update(failures=1)
    assert do(Kind.MEASURE_HELDOUT, with_text.pk) is None
    assert losses(with_text) == [None, 5.25]


def test_a_measurement_that_fails_is_not_tried_again(with_text: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot(with_text, 10)
    failing(monkeypatch, problem := Problem.of("E361", loss="nan"))
    assert do(Kind.MEASURE_HELDOUT, with_text.pk) == Failed(str(problem))
    assert losses(with_text) == [None, None]


def test_a_measurement_that_a_stop_interrupts_can_be_done_later(
    with_text: Run, monkeypatch: pytest.MonkeyPatch, children: list[list[str]]
) -> None:
    snapshot(with_text, 10)
    with monkeypatch.context() as stopping:
        failing(stopping, ChildStopped())
        assert measure_newest(with_text.pk) is None
    assert losses(with_text) == [None, None]
    assert measure_newest(with_text.pk) is None
    assert losses(with_text) == [None, 5.25]


def test_pages_and_card_have_it(with_text: Run) -> None:
    for step in (10, 20, 30):
        snapshot(with_text, step)
    assert selectors.run_picture(with_text).heldout == []
    for step, loss in ((10, 6.0), (20, 5.5)):
        figures = {"accuracy": step / 100}
        Snapshot.objects.filter(step=step).update(heldout_loss=loss, heldout_figures=figures)
    shown = selectors.heldout_points(with_text)
    assert [(point.place, point.step, point.loss) for point in shown] == [(10, 10, 6.0), (20, 20, 5.5)]
    assert [point.step for point in selectors.heldout_points(with_text, most=1)] == [20]
    assert shown[-1].figures == {"accuracy": 0.2}
    Snapshot.objects.filter(step=10).update(heldout_loss=5.0)
    assert [point.step for point in selectors.heldout_points(with_text, most=1)] == [10, 20], "the best is among them"
    Snapshot.objects.filter(step=10).update(heldout_loss=6.0)
    last = with_text.snapshots.get(step=30)
    facts = release_facts(with_text, last)
    assert (facts.steps, facts.heldout_loss, facts.heldout_step) == (30, 5.5, 20)
    assert facts.heldout_figures == {"accuracy": 0.2}


def test_the_best_snapshot_is_the_first_with_the_least_loss(with_text: Run) -> None:
    assert selectors.best_snapshot(with_text) is None
    for step, loss in ((10, 6.0), (20, 5.5), (30, 5.5), (40, None), (50, 5.75)):
        snapshot(with_text, step)
        Snapshot.objects.filter(step=step).update(heldout_loss=loss)
    best = selectors.best_snapshot(with_text)
    assert best is not None
    assert best.step == 20
