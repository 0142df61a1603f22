"""Request bodies that are too long are refused by their declared length, before the site reads them."""

import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from accounts.models import Person
from coordination.snapshots import elect_keeper
from runs.models import Run
from runs.snapshots.state_check import HEADER_BYTES
from server.body_limits import LARGE_AT_ONCE, LengthGuard
from server.stranger_limits import STRANGER_BYTES
from tests.runs.factories import ELEMENTS, Owned

STATE_BYTES = ELEMENTS * 12 + HEADER_BYTES
SNAPSHOT = "/api/v1/runs/proverbs/snapshots/1"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def cookie_of(person: Person) -> dict[str, str]:
    client = Client()
    client.force_login(person)
    return {"cookie": f"sessionid={client.cookies['sessionid'].value}"}


def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
    """Return the status and body of the answer. The test fails if the site reads the request's body."""
    return asked_of(LengthGuard(inner), method, path, headers)


def asked_of(guard: LengthGuard, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        pytest.fail("the body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    names = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", b"here"), *names]}
    async_to_sync(guard)(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(("length", "status"), [("3000000", 299), ("3000001", 413), ("99999999999999", 413)])
def test_an_upload_is_bounded_by_the_site(settings: Any, volunteer: Person, length: str, status: int) -> None:
    settings.UPLOAD_LIMIT_MB = 2
    assert ask("POST", "/runs/new/", content_length=length, **cookie_of(volunteer))[0] == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/runs/proverbs/edit/", 299),
        ("POST", "/runs/proverbs/texts/", 299),
        ("POST", "/runs/proverbs/model/", 299),
        ("POST", "/runs/proverbs/manage/", 413),
        ("POST", "/runs/proverbs/edit/more/", 413),
        ("PATCH", "/uploads/1/", 413),
    ],
)
def test_only_forms_that_carry_a_text_are_long(
    settings: Any, volunteer: Person, method: str, path: str, status: int
) -> None:
    settings.UPLOAD_LIMIT_MB = 2
    assert ask(method, path, content_length="2000000", **cookie_of(volunteer))[0] == status


@pytest.mark.parametrize("path", ["/runs/new/", "/runs/proverbs/edit/", "/signup/", "/uploads/", "/api/v1/machines"])
def test_nobody_who_is_not_logged_in_sends_more_than_a_little(db: None, path: str) -> None:
    assert ask("POST", path, content_length=str(STRANGER_BYTES))[0] == 299
    status, text = ask("POST", path, content_length=str(STRANGER_BYTES + 1), cookie="sessionid=guessed")
    assert status == 413
    assert "E362" in text


def test_a_closed_account_is_nobody(volunteer: Person) -> None:
    header = cookie_of(volunteer)
    Person.objects.update(is_active=False)
    assert ask("POST", "/runs/new/", content_length=str(STRANGER_BYTES + 1), **header)[0] == 413


def test_a_text_that_its_sender_may_not_keep_is_not_read(settings: Any, volunteer: Person, operator: Person) -> None:
    settings.QUOTAS = settings.QUOTAS | {"disk_mb": 2}
    assert ask("POST", "/runs/new/", content_length="3000000", **cookie_of(volunteer))[0] == 299
    status, text = ask("POST", "/runs/new/", content_length="3000001", **cookie_of(volunteer))
    assert status == 413
    assert "E365" in text
    assert ask("POST", "/runs/new/", content_length="3000001", **cookie_of(operator))[0] == 299


def test_one_person_sends_few_large_bodies_at_once(volunteer: Person, stranger: Person) -> None:
    """Each request starts while the previous one is still being handled."""
    statuses: list[int] = []

    async def nested(scope: Any, receive: Any, send: Any) -> None:
        statuses.append(len(statuses))
        if len(statuses) <= LARGE_AT_ONCE:
            sent: list[Any] = []

            async def note(message: Any) -> None:
                sent.append(message)

            await guard(scope, receive, note)
            last.append(sent[0]["status"])
        await inner(scope, receive, send)

    last: list[int] = []
    guard = LengthGuard(nested)
    headers = {"content_length": "100000", **cookie_of(volunteer)}
    assert asked_of(guard, "POST", "/runs/new/", headers)[0] == 299
    assert last == [429, *[299] * (LARGE_AT_ONCE - 1)]
    assert not guard.sending


def test_the_refusal_is_a_page_for_people_and_json_for_programs(db: None) -> None:
    status, text = ask("POST", "/runs/new/", content_length=str(10**12))
    assert status == 413
    assert "this site accepts up to 512 MB" in text
    assert "<h1>" in text
    text = ask("POST", "/api/v1/machines", content_length=str(10**9))[1]
    assert text.startswith('{"code": "E304"')
    assert "1,000 MB; this site accepts up to 1 MB" in text


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
        elect_keeper(run, peer=laptop.machine.peer_id, index=1, step=1)
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
