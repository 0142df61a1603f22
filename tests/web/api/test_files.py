"""The tokenizer's files, served to holders of a credential for the run."""

import hashlib
import time
from typing import Any

import pytest
from django.test import Client

from accounts.models import Machine, Person
from peer_agent.protocol.credentials import Role
from runs import storage
from runs.models import Run
from tests.runs.factories import Owned, owned
from web.api.files import TOKENIZER

WHERE = "/api/v1/files/tokenizer"


@pytest.fixture
def headers(run: Run, laptop: Owned) -> dict[str, str]:
    folder = storage.tokenizer_folder(run.dataset)
    folder.mkdir(parents=True)
    for name in TOKENIZER:
        (folder / name).write_text(f"content of {name}")
    return laptop.credential(run, now=int(time.time()))


def test_the_files_are_listed_and_served(client: Client, headers: dict[str, str]) -> None:
    files: list[dict[str, Any]] = client.get(WHERE, headers=headers).json()["files"]
    assert [file["name"] for file in files] == list(TOKENIZER)
    for file in files:
        answer: Any = client.get(f"{WHERE}/{file['name']}", headers=headers)
        content = b"".join(answer.streaming_content)
        assert hashlib.sha256(content).hexdigest() == file["sha256"]


@pytest.mark.parametrize("name", ["text", "README.md", "..%2f..%2fkeys"])
def test_nothing_else_is(client: Client, headers: dict[str, str], name: str) -> None:
    assert client.get(f"{WHERE}/{name}", headers=headers).status_code == 404


def test_nobody_without_a_credential_of_the_run(client: Client, headers: dict[str, str], volunteer: Person) -> None:
    relay = owned(volunteer, "relay", Machine.Kind.RELAY).credential(None, Role.RELAY, now=int(time.time()))
    for path in (WHERE, f"{WHERE}/tokenizer.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=relay).status_code == 403


def test_before_the_text_is_prepared_there_is_none(client: Client, run: Run, laptop: Owned) -> None:
    assert client.get(WHERE, headers=laptop.credential(run, now=int(time.time()))).status_code == 404
