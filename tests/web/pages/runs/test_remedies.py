"""Errors on an organizer's pages: what the remedy says is done there, and then the thing works."""

import json
import re
from typing import Any

import pytest

from accounts.models import Person
from runs.datasets.preparation import prepare_dataset
from runs.models import Publication, Run
from runs.releases.publishing import push_release
from tests.publishing.hub_double import Hub, running_hub
from tests.runs.releases.test_publishing import release  # noqa: F401 (a fixture)
from tests.web.browsing import as_, page
from tests.web.pages.runs import test_hub_sources as sources
from tests.web.pages.runs.test_run import filled

MANAGE, PUBLISH = "/runs/{}/manage/", "/runs/proverbs/publish/"
DAMAGED = "Déjà vu, été comme hiver. ".encode() * 200 + b"\xe9"
ROWS = [{"text": f"Many hands make light work, {number} times."} for number in range(900)]


@pytest.mark.parametrize(
    ("code", "content", "mended"),
    [
        ("E302", DAMAGED, DAMAGED.decode(errors="replace").encode()),
        ("E382", json.dumps([{"id": 1}] * 900).encode(), json.dumps(ROWS).encode()),
    ],
)
def test_another_file_is_uploaded_and_publishable(
    organizer: Person, data_folder: Any, code: str, content: bytes, mended: bytes
) -> None:
    client = as_(organizer)
    client.post("/runs/new/", filled(content=content))
    for given in (content, mended):
        run = Run.objects.get()
        prepare_dataset(run.dataset_id)
        shown = page(client.get(MANAGE.format(run.slug)))
        assert (f"({code})" in shown) == ("disabled" in shown) == (given is content)
        if link := re.search(r'href="([^"]+)">Choose another file<', shown):
            client.post(link[1], filled(content=mended))


@pytest.mark.check
def test_hub_answers_later(organizer: Person, data_folder: Any, settings: Any) -> None:
    settings.HUB_ENDPOINT = "http://127.0.0.1:9"
    client = as_(organizer)
    answer = client.post("/runs/new/", sources.filled())
    assert "E346" in str(answer.context["form"].errors["hub"])
    with running_hub() as hub:
        settings.HUB_ENDPOINT = hub.url
        hub.put_files("datasets/amina/proverbs", {"train.jsonl": sources.LINES})
        assert client.post("/runs/new/", sources.filled()).status_code == 302
    assert Run.objects.get().dataset.filename == "amina/proverbs"


@pytest.mark.parametrize("remedy", ["a token", "a name"])
@pytest.mark.usefixtures("release")
def test_model_goes_where_the_token_may_write(organizer: Person, run: Run, settings: Any, remedy: str) -> None:
    client, asked = as_(organizer), {"action": "publish", "repository": "band/proverbs"}
    with running_hub() as hub:
        settings.HUB_ENDPOINT = hub.url
        save(client, hub, "amina")
        client.post(PUBLISH, asked)
        push_release(run.pk)
        assert "(E344)" in page(client.get(PUBLISH))
        if remedy == "a token":
            save(client, hub, "band")
        else:
            asked["repository"] = "amina/proverbs"
        assert client.post(PUBLISH, asked).status_code == 302
        push_release(run.pk)
        assert "E344" not in page(client.get(PUBLISH))
    assert Publication.objects.get().url == f"{hub.url}/{asked['repository']}"


def save(client: Any, hub: Hub, account: str) -> None:
    hub.account(account, f"hf_of_{account}")
    assert client.post(PUBLISH, {"action": "save", "token": f"hf_of_{account}"}).status_code == 302
