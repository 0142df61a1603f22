"""The migration to the job table requests the work that was left in Celery's queue."""

from importlib import import_module

from django.apps import apps

from accounts.models import Person
from jobs.queue import Kind
from notices import services as notices
from notices.models import Way
from runs.datasets.services import store_upload
from runs.lifecycle import services
from runs.models import Publication, Run
from tests.jobs.requests import forget_requests, requested
from tests.runs.factories import RECIPE, draft

TEXT = b"Many hands make light work.\n" * 100
migration = import_module("runs.migrations.0005_jobs")


def migrated() -> set[tuple[str, str]]:
    """Return the jobs that the migration requests."""
    forget_requests()
    migration.request_unfinished(apps, None)
    return set(requested())


def test_a_site_without_unfinished_work_verifies_its_runs(run: Run) -> None:
    """A run whose snapshots are verified has nothing to do; its job then ends at once."""
    assert migrated() == {(Kind.VERIFY_SNAPSHOTS, run.pk.hex)}


def test_unfinished_work_is_requested(organizer: Person, run: Run) -> None:
    text = store_upload(organizer=organizer, title="W", licence="CC0", filename="w.txt", size=len(TEXT), chunks=[TEXT])
    created = services.create_run(organizer=organizer, dataset=text, title="Words", purpose="", recipe=RECIPE)
    preparing = draft(organizer, slug="preparing", state=Run.State.PREPARING)
    services.finish_run(run=run)
    Publication.objects.create(run=run, repository="amina/proverbs", checkpoint_every=4)
    assert migrated() == {
        (Kind.PREPARE_DATASET, text.pk.hex),
        (Kind.PREPARE_RUN, preparing.pk.hex),
        *((Kind.VERIFY_SNAPSHOTS, each.pk.hex) for each in (run, created, preparing)),
        (Kind.MAKE_RELEASE, run.pk.hex),
        (Kind.PUBLISH_RELEASE, run.pk.hex),
        (Kind.PUBLISH_CHECKPOINT, run.pk.hex),
    }


def test_waiting_notices_are_delivered(volunteer: Person) -> None:
    notices.send_test(person=volunteer, way=Way.BROWSER)
    assert migrated() == set()
    notices.send_test(person=volunteer, way=Way.WEBHOOK)
    assert migrated() == {(Kind.DELIVER_NOTICES, "")}
