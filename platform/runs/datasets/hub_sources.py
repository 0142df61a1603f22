"""Data and models on the Hugging Face Hub.

The site looks up a repository when someone names it, and fetches its files before preparing them.
"""

import threading
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from django.conf import settings
from django.db import transaction

from accounts.models import Person
from peer_agent.publishing.hub_client import Kind, check_name
from peer_agent.site_work.fetching import SAMPLE_BYTES
from runs import quotas, storage
from runs.datasets.services import new_dataset
from runs.hub_access import account_of, hub_environment, token_of
from runs.models import Dataset
from runs.processes import run_child

LOOK_S = 60.0  # timeout for looking up a repository
FETCH_S = 24 * 3600.0
NOT_STATED = "not stated on the Hub"

Outcome = Literal["busy", "done"]

_fetching = threading.Lock()  # one fetch at a time, since they share the site's connection and disk


class OnHub(NamedTuple):
    """A repository on the Hub, as it was when someone named it.

    `size` is in bytes. If `streamed`, machines read the data directly from the Hub, and the site fetches only a sample.
    """

    repository: str
    kind: Kind
    files: str
    commit: str
    size: int
    licence: str
    streamed: bool = False

    @property
    def fetched_size(self) -> int:
        """The most bytes that this site will fetch from the repository."""
        return min(self.size, _most(), SAMPLE_BYTES) if self.streamed else self.size


def named_on_hub(words: str, kind: Kind) -> tuple[str, str]:
    """Split `owner/name/folder`, or a Hub page's address, into the repository and any folder or file in it."""
    path = words.removeprefix(settings.HUB_ENDPOINT).strip("/ ")
    if kind != "dataset":
        return path.removesuffix("/tree/main"), ""
    owner, name, *rest = [*path.removeprefix("datasets/").split("/", 2), ""][:3]
    return f"{owner}/{name}", "".join(rest).removeprefix("tree/main").strip("/")


def look_on_hub(*, person: Person, repository: str, kind: Kind, files: str = "") -> OnHub:
    """Look up a Hub repository that this person can read. Call it outside a transaction, since it waits for the Hub.

    Raises Problem E346 or E347 if the Hub does not answer properly, E348 if the name is not valid, and E397 if the
    repository cannot be read. Raises E304 if it is too large, and E372, E388, E389, E396 or E398 if its files cannot be
    used. Raises E352 if the person's saved Hub token cannot be decrypted.
    """
    check_name(repository)
    told = ["--repository", repository, "--kind", kind, f"--files={files}", f"--most={_most()}"]
    found = _asked(person, ["hub-look", *told], timeout_s=LOOK_S)
    licence = found["licence"] or NOT_STATED
    return OnHub(repository, kind, files, found["commit"], found["size"], licence, found["streamed"])


def bring_from_hub(*, organizer: Person, title: str, licence: str, found: OnHub) -> Dataset:
    """Create a dataset whose files the site fetches from the Hub later. `licence` defaults to the repository's.

    Raises Problem E365 if the dataset exceeds the organizer's storage quota.
    """
    names = ("repository", "kind", "files", "commit")
    origin = {name: getattr(found, name) for name in names} | ({"streamed": found.size} if found.streamed else {})
    size = found.fetched_size
    facts: dict[str, Any] = {"title": title, "licence": licence or found.licence, "size": size, "origin": origin}
    dataset = new_dataset(organizer=organizer, filename=found.repository, **facts)
    with transaction.atomic():
        quotas.held(organizer)
        quotas.require_disk(organizer, size)
        dataset.save(force_insert=True)
    return dataset


def fetch_missing(datasets: Iterable[Dataset]) -> Outcome:
    """Fetch the datasets whose files are missing, one at a time. Return "busy" if another fetch is already running.

    Raises Problem E346 if the Hub does not respond, or another Problem if a fetch fails. Files already fetched are
    kept.
    """
    for dataset in datasets:
        if not dataset.is_fetched:
            if not _fetching.acquire(blocking=False):
                return "busy"
            try:
                _fetch(dataset)
            finally:
                _fetching.release()
    return "done"


def arrived(dataset: Dataset) -> int:
    """Return how many bytes of a Hub dataset are already on disk."""
    folder = storage.text_path(dataset)
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0


def _fetch(dataset: Dataset) -> None:
    origin = dataset.origin or {}
    most = [f"--most={_most()}", *(["--streamed"] if "streamed" in origin else [])]
    told = [*most, *(f"--{name}={origin[name]}" for name in ("repository", "kind", "files", "commit"))]
    fetched = _asked(dataset.organizer, ["hub-fetch", str(storage.text_path(dataset)), *told], timeout_s=FETCH_S)
    storage.keep(storage.text_path(dataset))
    Dataset.objects.filter(pk=dataset.pk).update(sha256=fetched["sha256"], size=fetched["size"])
    dataset.refresh_from_db(fields=["sha256", "size"])


def _most() -> int:
    return int(settings.HUB_LIMIT_MB) * storage.MEGABYTE


def _asked(person: Person, command: list[str], *, timeout_s: float) -> dict[str, Any]:
    token = token_of(person) if account_of(person) is not None else ""
    with storage.workspace() as home:
        return run_child(
            [*command, "--endpoint", settings.HUB_ENDPOINT],
            timeout_s=timeout_s,
            secret=token,
            more=hub_environment(home),
        )
