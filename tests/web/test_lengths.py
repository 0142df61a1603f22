"""Bodies that are too long are refused by their length, before a byte of them is read."""

import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from runs.models import Run
from tests.runs.cast import ELEMENTS, Owned
from web.admission import HEADER_BYTES
from web.lengths import LengthGuard

STATE_BYTES = ELEMENTS * 12 + HEADER_BYTES
SNAPSHOT = "/api/v1/runs/proverbs/snapshots/1"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    """What stands behind the guard."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
    """Status and body of the answer; reading the request's body fails the test."""
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        pytest.fail("the body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    names = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", b"here"), *names]}
    async_to_sync(LengthGuard(inner))(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(("length", "status"), [("3000000", 299), ("3000001", 413), ("99999999999999", 413)])
def test_an_upload_is_bounded_by_the_site(settings: Any, db: None, length: str, status: int) -> None:
    settings.UPLOAD_LIMIT_MB = 2
    assert ask("POST", "/runs/new/", content_length=length)[0] == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/runs/proverbs/edit/", 299),
        ("POST", "/runs/proverbs/manage/", 413),
        ("POST", "/runs/proverbs/edit/more/", 413),
        ("PATCH", "/uploads/1/", 413),
    ],
)
def test_only_forms_that_carry_a_text_are_long(settings: Any, db: None, method: str, path: str, status: int) -> None:
    settings.UPLOAD_LIMIT_MB = 2
    assert ask(method, path, content_length="2000000")[0] == status


def test_the_refusal_is_a_page_for_people_and_json_for_programs(db: None) -> None:
    status, text = ask("POST", "/runs/new/", content_length=str(10**12))
    assert status == 413
    assert "this site takes up to 512 MB" in text
    assert "<h1>" in text
    text = ask("POST", "/api/v1/machines", content_length=str(10**9))[1]
    assert text.startswith('{"code": "E304"')
    assert "1,000 MB; this site takes up to 1 MB" in text


@pytest.mark.parametrize("path", ["/runs/new/", "/api/v1/machines", SNAPSHOT + "0"])
def test_a_body_of_unknown_length_is_refused(db: None, path: str) -> None:
    status, text = ask("POST", path, transfer_encoding="chunked")
    assert status == 411
    assert "E311" in text


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_request_without_a_body_passes(db: None, method: str) -> None:
    assert ask(method, "/")[0] == 299


def test_a_get_with_a_long_body_is_refused(db: None) -> None:
    assert ask("GET", "/", content_length=str(10**9))[0] == 413


class TestSnapshots:
    def test_one_of_the_runs_size_passes(self, run: Run, laptop: Owned) -> None:
        header = laptop.credential(run, now=int(time.time()))
        assert ask("PUT", SNAPSHOT, content_length=str(STATE_BYTES), **header)[0] == 299

    def test_a_longer_one_is_refused(self, run: Run, laptop: Owned) -> None:
        header = laptop.credential(run, now=int(time.time()))
        assert ask("PUT", SNAPSHOT, content_length=str(STATE_BYTES + 1), **header)[0] == 413

    def test_nobody_fills_the_disk_without_a_credential(self, run: Run) -> None:
        status, text = ask("PUT", SNAPSHOT, content_length="10")
        assert status == 401
        assert "E201" in text

    def test_nor_for_another_run(self, run: Run, laptop: Owned) -> None:
        header = laptop.credential(run, now=int(time.time()))
        assert ask("PUT", "/api/v1/runs/none/snapshots/1", content_length="10", **header)[0] == 404
