"""Per-person quotas, which do not apply to operators."""

from typing import Any

import msgspec
import pytest

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import quotas
from runs.datasets import uploads
from runs.datasets.services import store_upload
from runs.lifecycle import drafts, services
from runs.models import Dataset, Run, Upload
from runs.states import UNDER_WAY
from runs.storage import MEGABYTE
from tests.runs.factories import RECIPE, draft, opened, understood


@pytest.fixture(autouse=True)
def tight(settings: Any) -> None:
    settings.QUOTAS = {"drafts": 2, "disk_mb": 1, "parameters": RECIPE.parameters(), "runs": 1}


def new_run(person: Person, **changes: Any) -> Run:
    text = Dataset.objects.filter(organizer=person).first() or draft(person, slug=f"of-{person.pk}").dataset
    recipe = msgspec.structs.replace(RECIPE, **changes)
    return services.create_run(organizer=person, dataset=text, title="Proverbs", purpose="", recipe=recipe)


def store(person: Person, size: int) -> Dataset:
    facts = {"title": "Words", "licence": "CC0", "filename": "words.txt"}
    return store_upload(organizer=person, size=size, chunks=[b"a" * size], **facts)


def test_a_person_has_so_many_drafts(organizer: Person, volunteer: Person) -> None:
    draft(organizer)
    new_run(organizer)
    with pytest.raises(Problem, match=r"E364: You have 2 drafts; the limit is 2"):
        new_run(organizer)
    assert new_run(volunteer)
    drafts.delete_draft(run=organizer.runs.filter(state=Run.State.DRAFT).latest("created_at"))
    assert new_run(organizer)


def test_a_model_has_so_many_parameters(organizer: Person) -> None:
    with pytest.raises(Problem, match="E366"):
        new_run(organizer, vocab=RECIPE.vocab + 1)
    run = new_run(organizer)
    with pytest.raises(Problem, match="E366"):
        drafts.change_draft(run=run, recipe=msgspec.structs.replace(RECIPE, vocab=RECIPE.vocab + 1), licence="CC0")


def test_a_draft_of_before_the_bound_is_not_opened(organizer: Person, settings: Any) -> None:
    run = draft(organizer)
    settings.QUOTAS = settings.QUOTAS | {"parameters": RECIPE.parameters() - 1}
    with pytest.raises(Problem, match="E366"):
        services.open_run(run=run, seen="")
    run.refresh_from_db()
    assert run.state == Run.State.DRAFT


@pytest.mark.parametrize("state", UNDER_WAY)
def test_so_many_runs_are_under_way_at_once(organizer: Person, state: str) -> None:
    first, second = opened(organizer, state=state), draft(organizer, slug="second")
    with pytest.raises(Problem, match=r"E367: You have 1 active runs"):
        services.open_run(run=second, seen="")
    Run.objects.filter(pk=first.pk).update(state=Run.State.FINISHED)
    services.open_run(run=second, seen=understood(second.dataset))
    assert second.state == Run.State.PREPARING


def test_a_person_has_so_much_disk(organizer: Person, volunteer: Person) -> None:
    store(organizer, MEGABYTE - 10)
    with pytest.raises(Problem, match=r"E365.*would take 2 MB; the limit is 1 MB"):
        store(organizer, 11)
    assert store(organizer, 10)
    assert store(volunteer, 11)


def test_a_text_on_its_way_in_counts_whole(organizer: Person) -> None:
    uploads.begin_upload(person=organizer, filename="words.txt", size=MEGABYTE - 10)
    for send in (lambda: store(organizer, 11), lambda: begin(organizer, 11)):
        with pytest.raises(Problem, match="E365"):
            send()
    assert Upload.objects.count() == 1


def test_one_that_is_given_up_for_the_new_one_does_not_count(organizer: Person) -> None:
    for _ in range(uploads.A_PERSON):
        begin(organizer, MEGABYTE // uploads.A_PERSON)
    begin(organizer, MEGABYTE // uploads.A_PERSON)
    assert Upload.objects.count() == uploads.A_PERSON


def begin(person: Person, size: int) -> Upload:
    return uploads.begin_upload(person=person, filename="words.txt", size=size)


def test_operators_have_no_bounds(operator: Person) -> None:
    opened(operator)
    for _ in range(3):
        new_run(operator, vocab=RECIPE.vocab + 1)
        store(operator, MEGABYTE)
    run = draft(operator, slug="one-more")
    services.open_run(run=run, seen=understood(run.dataset))
    assert run.state == Run.State.PREPARING
    assert quotas.use_of(operator).most is None


def test_what_is_used_is_told(organizer: Person) -> None:
    opened(organizer)
    draft(organizer, slug="second")
    assert quotas.use_of(organizer)[:3] == (1, 1, 1)
