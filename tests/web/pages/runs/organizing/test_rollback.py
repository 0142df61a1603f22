"""Rolling back on the manage page: what is offered, what is asked, and what it does."""

import pytest

from runs.lifecycle.services import ask_rollback
from runs.models import Run
from tests.runs.factories import Owned, committed
from tests.runs.lifecycle.test_services import kept
from tests.web.browsing import as_, page

MANAGE, ASK = "/runs/proverbs/manage/", "/runs/proverbs/rollback/2/"


@pytest.fixture
def trained(run: Run, laptop: Owned) -> Run:
    """Five steps, with a snapshot at the second and the fourth."""
    for step in range(1, 6):
        committed(run, (laptop.machine, 4))
        if step in (2, 4):
            kept(run, step, heldout_loss=2.0 + step)
    return run


@pytest.mark.usefixtures("trained")
def test_snapshots_stand_there_with_the_best_one_marked() -> None:
    text = page(as_("Amina").get(MANAGE))
    assert text.index("/runs/proverbs/rollback/4/") < text.index(ASK) < text.index("/runs/proverbs/rollback/0/")
    best = text[text.index('<td data-label="Step"><span>2') :].split("</td>")[0]
    assert "best" in best
    assert text.count(">best<") == 1
    assert "4.000" in text


@pytest.mark.usefixtures("trained")
def test_it_is_asked_once_with_what_it_means(trained: Run) -> None:
    text = page(as_("Amina").get(ASK))
    assert "Roll back to step 2?" in text
    assert "The 3 steps after step 2 are undone." in text
    assert "Everyone keeps their credit." in text
    assert "Machines load the snapshot again" in text
    trained.refresh_from_db()
    assert trained.rollback_index is None
    assert as_("Amina").post(ASK)["Location"] == MANAGE
    trained.refresh_from_db()
    assert trained.rollback_index == 2
    assert "being rolled back to step 2" in page(as_("Amina").get(MANAGE))


def test_one_step(trained: Run) -> None:
    assert "The step after step 4 is undone." in page(as_("Amina").get("/runs/proverbs/rollback/4/"))


@pytest.mark.parametrize("index", ["3", "99", "9" * 30])
@pytest.mark.usefixtures("trained")
def test_what_is_no_snapshot_is_not_found(index: str) -> None:
    assert as_("Amina").get(f"/runs/proverbs/rollback/{index}/").status_code == 404


def test_a_finished_run_says_so_and_offers_none(trained: Run) -> None:
    Run.objects.update(state=Run.State.FINISHED)
    answer = as_("Amina").post(ASK)
    assert answer.status_code == 409
    assert "the run is finished" in page(answer)
    assert "rollback/" not in page(as_("Amina").get(MANAGE))


def test_one_that_is_chosen_already_says_so(trained: Run) -> None:
    ask_rollback(run=trained, index=4)
    assert "it is being rolled back" in page(as_("Amina").post(ASK))
