"""Pages that show a person's quotas and refuse anything above them."""

from typing import Any

import pytest

from accounts.models import Person
from runs.models import Dataset
from runs.storage import MEGABYTE
from tests.runs.factories import RECIPE, draft, opened
from tests.web.browsing import as_, page
from tests.web.pages.runs.test_run import filled
from tests.web.pages.runs.test_uploads import announce


@pytest.fixture(autouse=True)
def tight(settings: Any) -> None:
    settings.QUOTAS = {"drafts": 2, "disk_mb": 1, "parameters": RECIPE.parameters(), "runs": 1}


def test_the_form_says_what_is_left_and_the_bound_that_was_met(organizer: Person, operator: Person) -> None:
    drafts_of = [draft(organizer), draft(organizer, slug="second")]
    client = as_(organizer)
    assert "2 of 2 drafts, 1 of 1 MB of data" in page(client.get("/runs/new/"))
    answer = client.post("/runs/new/", filled())
    assert (answer.status_code, "E364" in page(answer)) == (400, True)
    assert Dataset.objects.count() == len(drafts_of), "its text was not kept either"
    assert 'id="quotas"' not in page(as_(operator).get("/runs/new/"))


def test_the_manage_page_says_how_many_runs_are_under_way(organizer: Person) -> None:
    opened(organizer)
    run = draft(organizer, slug="second")
    client = as_(organizer)
    assert "Your active runs: 1 of 1 allowed." in page(client.get(f"/runs/{run.slug}/manage/"))
    answer = client.post(f"/runs/{run.slug}/manage/", {"action": "open"})
    assert (answer.status_code, "E367" in page(answer)) == (400, True)


def test_a_text_in_pieces_is_refused_as_it_is_announced(organizer: Person) -> None:
    answer = announce(as_(organizer), **{"Upload-Length": str(MEGABYTE + 1)})
    assert (answer.status_code, answer.json()["code"]) == (413, "E365")
