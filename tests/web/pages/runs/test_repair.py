"""The page of a run whose loss rose tells its managers what the site found, and offers one button to undo it."""

import pytest

from accounts.models import Person
from peer_agent.protocol import reasons
from runs.models import Member, Recheck, Run
from tests.runs.factories import Owned, committed, owned
from tests.runs.snapshots.test_recheck import snapshot
from tests.web.browsing import as_, page

RUN, REPAIR = "/runs/proverbs/", "/runs/proverbs/repair/"


@pytest.fixture
def halted(run: Run, laptop: Owned) -> Run:
    for step in range(1, 9):
        committed(run, (laptop.machine, 4))
        if step == 4:
            snapshot(run, step)
    Run.objects.filter(pk=run.pk).update(
        state="paused", wanted="paused", waiting_for=reasons.LOSS_ROSE.format(before="1", now="2.5", step="8")
    )
    run.refresh_from_db()
    return run


def found(run: Run, *blamed: Owned, index: int = 6) -> None:
    machines = [{"machine": each.machine.peer_id, "index": index} for each in blamed]
    Recheck.objects.create(
        run=run, outcome={"first": 6, "last": 8, "checked": 12, "left": 0, "index": 8, "blamed": machines}
    )


def test_page_says_that_the_site_is_checking_and_reloads(halted: Run) -> None:
    Recheck.objects.create(run=halted, evidence=b"[]")
    text = page(as_("Amina").get(RUN))
    assert "The site is computing the last contributions again" in text
    assert 'http-equiv="refresh"' in text


def test_page_says_why_a_check_failed(halted: Run) -> None:
    Recheck.objects.create(run=halted, evidence=b"[]", fault="E341: no relay has the averages of step 6.")
    text = page(as_("Amina").get(RUN))
    assert "The last attempt failed. The site will try again." in text
    assert "(E341)" in text


def test_page_says_that_nothing_was_false(halted: Run) -> None:
    found(halted)
    text = page(as_("Amina").get(RUN))
    assert "The site computed 12 contributions to steps 6 to 8 again, and found none false." in text
    assert REPAIR not in text
    assert as_("Amina").get(REPAIR).status_code == 404


def test_page_says_if_nothing_could_be_checked(halted: Run) -> None:
    Recheck.objects.create(run=halted, outcome={"first": 0, "last": 0, "checked": 0, "left": 6, "index": 0})
    text = page(as_("Amina").get(RUN))
    assert "The site could not compute the last contributions again" in text
    assert "none false" not in text


def test_one_button_names_the_person_and_the_step(halted: Run, laptop: Owned, stranger: Person) -> None:
    found(halted, laptop, owned(stranger))
    text = page(as_("Amina").get(RUN))
    assert f"Contributions by <strong>{stranger}, {laptop.machine.person}</strong> were not the gradients" in text
    assert f'href="{REPAIR}">Remove 2 people and roll back to step 4…</a>' in text


def test_it_is_asked_once_then_done(halted: Run, laptop: Owned) -> None:
    found(halted, laptop)
    name = laptop.machine.person.username
    text = page(as_("Amina").get(REPAIR))
    assert f"<h1>Remove {name} and roll back to step 4?</h1>" in text
    assert "All steps after step 4 are discarded" in text
    assert not Member.objects.exists()
    assert as_("Amina").post(REPAIR)["Location"] == RUN
    halted.refresh_from_db()
    assert (halted.state, halted.rollback_index) == ("open", 4)
    assert Member.objects.exclude(removed_at=None).get().person == laptop.machine.person


def test_without_an_earlier_snapshot_the_steps_stay(halted: Run, laptop: Owned) -> None:
    halted.snapshots.update(is_stored=False)
    found(halted, laptop)
    name = laptop.machine.person.username
    text = page(as_("Amina").get(REPAIR))
    assert f"<h1>Remove {name}?</h1>" in text
    assert "the model stays as it is" in text
    as_("Amina").post(REPAIR)
    halted.refresh_from_db()
    assert (halted.state, halted.rollback_index) == ("open", None)


def test_visitors_get_no_button(halted: Run, laptop: Owned, stranger: Person) -> None:
    found(halted, laptop)
    text = page(as_(stranger).get(RUN))
    assert "were not the gradients" not in text
    assert REPAIR not in text
    assert as_(stranger).get(REPAIR).status_code == 403
