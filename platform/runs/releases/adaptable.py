"""Models that were trained here, offered to runs that adapt one: no byte of them is uploaded again."""

from django.db import transaction

from accounts.models import Person
from peer_agent.protocol.recipe import Recipe
from runs import quotas
from runs.access import Viewer, listed_runs
from runs.datasets.services import new_dataset, whole_or_gone
from runs.models import Dataset, Release
from runs.storage import link, release_path, text_path

LOOKED_AT, MOST = 500, 100  # releases of all kinds, newest first; those that are offered


def adaptable_releases(recipe: Recipe, viewer: Viewer) -> list[Release]:
    """Finished models for the same task, of runs that somebody has on their list; newest first."""
    ready = Release.objects.filter(state=Release.State.READY, run__in=listed_runs(viewer))
    newest = ready.select_related("run__dataset").order_by("-created_at", "-pk")[:LOOKED_AT]
    return [release for release in newest if _is_for(recipe, release.run.parsed_recipe)][:MOST]


def _is_for(recipe: Recipe, trained: Recipe) -> bool:
    return bool(recipe.task) and (recipe.task, recipe.library) == (trained.task, trained.library)


@transaction.atomic
def bring_release(release: Release, *, organizer: Person, title: str, licence: str) -> Dataset:
    """The files of a release, as a model that somebody brought. `licence`: else that of the text it learned from.

    Raises Problem E365.
    """
    release = Release.objects.select_for_update().select_related("run__dataset").get(pk=release.pk)  # its files stay
    archive = next(file for file in release.files if file["name"] == release.archive)
    quotas.held(organizer)
    quotas.require_disk(organizer, archive["size"])
    dataset = new_dataset(
        organizer=organizer,
        title=title,
        licence=licence or release.run.dataset.licence,
        filename=archive["name"],
        size=archive["size"],
        sha256=archive["sha256"],
    )
    with whole_or_gone(dataset):
        link(release_path(release, archive["name"]), text_path(dataset))
        dataset.save(force_insert=True)
    return dataset
