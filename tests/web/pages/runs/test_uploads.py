"""Texts in pieces over HTTP; one of them over a socket that is dropped in the middle, against a real site."""

import errno
import http.client
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.test import Client

from accounts.models import Person
from demo.visitor import CSRF, Visitor
from runs import storage
from runs.datasets import resumable_upload
from runs.models import Upload
from tests.server.test_serve import serving, where
from tests.web.pages.runs.test_run import as_

TEXT = "Many hands, много рук.\n".encode() * 200


def announce(client: Client, **changes: Any) -> Any:
    said = {"filename": "words.txt", "size": len(TEXT), **changes}
    return client.post("/uploads/", json.dumps(said), content_type="application/json")


def send(client: Client, path: str, offset: object, piece: bytes) -> Any:
    kind = "application/offset+octet-stream"
    return client.patch(path, piece, content_type=kind, headers={"Upload-Offset": str(offset)})


def test_announced_sent_asked_about_and_sent_on(organizer: Person) -> None:
    client = as_(organizer)
    answer = announce(client)
    assert answer.status_code == 201
    path, said = answer["Location"], answer.json()
    assert (said["offset"], said["size"]) == (0, len(TEXT))
    assert send(client, path, 0, TEXT[:1001])["Upload-Offset"] == "1001"
    asked = client.head(path)
    assert (asked["Upload-Offset"], asked["Upload-Length"]) == ("1001", str(len(TEXT)))
    assert send(client, path, 1001, TEXT[1001:])["Upload-Offset"] == str(len(TEXT))
    assert storage.upload_path(Upload.objects.get()).read_bytes() == TEXT
    assert client.delete(path).status_code == 204
    assert not Upload.objects.exists()


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"size": 10**12}, 413, "E304"),
        ({"size": 0}, 400, "E303"),
        ({"size": "x"}, 400, "E206"),
        ({"filename": 1}, 400, "E206"),
    ],
)
def test_what_is_refused_before_a_byte_is_sent(
    organizer: Person, changes: dict[str, Any], status: int, code: str
) -> None:
    answer = announce(as_(organizer), **changes)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Upload.objects.exists()


def test_an_announcement_nested_without_end_is_refused(organizer: Person) -> None:
    endless = '{"filename": "words.txt", "size": 1, "more": ' + "[" * 100_000
    answer = as_(organizer).post("/uploads/", endless, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "E206")


@pytest.mark.parametrize("offset", ["", "-1", "x", "7", "9" * 5000])
def test_a_piece_for_another_place_is_refused(organizer: Person, offset: str) -> None:
    client = as_(organizer)
    answer = send(client, announce(client)["Location"], offset, TEXT)
    assert (answer.status_code, answer.json()["code"]) == (409, "E319")
    assert Upload.objects.get().offset == 0


def test_an_upload_whose_bytes_are_gone_is_begun_anew(organizer: Person) -> None:
    """As after a backup of the tables alone was put back."""
    client = as_(organizer)
    path = announce(client)["Location"]
    send(client, path, 0, TEXT[:1000])
    storage.upload_path(Upload.objects.get()).unlink()
    answer = send(client, path, 1000, TEXT[1000:])
    assert (answer.status_code, answer.json()["code"]) == (404, "E318")


def test_an_upload_that_another_tab_forgets_meanwhile_is_gone(
    organizer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, found = as_(organizer), resumable_upload.upload_of

    def forgotten(*who: Any) -> Upload:
        upload = found(*who)
        Upload.objects.all().delete()
        return upload

    path = announce(client)["Location"]
    monkeypatch.setattr(resumable_upload, "upload_of", forgotten)
    answer = send(client, path, 0, TEXT)
    assert (answer.status_code, answer.json()["code"]) == (404, "E318")


def test_a_full_disk_is_told_and_the_upload_goes_on_when_there_is_room(
    organizer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/srv/hands/upload")

    client = as_(organizer, raise_request_exception=False)
    path = announce(client)["Location"]
    with monkeypatch.context() as patch:
        patch.setattr(resumable_upload, "_write", full)
        answer = send(client, path, 0, TEXT)
    assert (answer.status_code, answer.json()["code"]) == (507, "E328")
    assert "/srv" not in answer.json()["text"]
    assert send(client, path, 0, TEXT)["Upload-Offset"] == str(len(TEXT))


def test_what_is_no_text_is_forgotten_at_once(organizer: Person) -> None:
    client = as_(organizer)
    answer = send(client, announce(client)["Location"], 0, TEXT[:10] + b"\xff")
    assert (answer.status_code, answer.json()["code"]) == (400, "E302")
    assert "byte 10: 0xff" in answer.json()["text"]
    assert not Upload.objects.exists()


def test_nobody_touches_anothers_upload(organizer: Person, stranger: Person) -> None:
    path = announce(as_(organizer))["Location"]
    for person in (stranger, organizer):
        other = path if person is stranger else f"/uploads/{uuid4()}/"
        client = as_(person)
        answers = [client.head(other), send(client, other, 0, TEXT), client.delete(other)]
        assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert announce(Client()).status_code == 401
    assert Client().head(path).status_code == 401
    assert Upload.objects.get().offset == 0


def test_a_piece_from_another_site_is_refused(organizer: Person) -> None:
    assert announce(as_(organizer, enforce_csrf_checks=True)).status_code == 403
    assert not Upload.objects.exists()


class Sender:
    """Somebody with a browser's cookies and a socket of their own."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        visitor = Visitor(url)
        visitor.submit("/signup/", {"username": "Amina", "password": "correct horse battery staple"})
        token = CSRF.search(visitor.read("/runs/new/"))
        assert token is not None
        opener: Any = visitor._opener
        (cookies,) = (handler.cookiejar for handler in opener.handlers if hasattr(handler, "cookiejar"))
        cookie = "; ".join(f"{cookie.name}={cookie.value}" for cookie in cookies)
        self.headers = {"Cookie": cookie, "X-CSRFToken": token[1]}

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> "http.client.HTTPResponse":
        connection = http.client.HTTPConnection(self.address, timeout=30)
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**self.headers, **extra})
        answer = connection.getresponse()
        answer.body = answer.read()  # type: ignore[attr-defined]
        connection.close()
        return answer

    def drop(self, path: str, offset: int, announced: int, piece: bytes) -> None:
        """Say that so many bytes come, send fewer, and go."""
        lines = {"Host": self.address, **self.headers, "Upload-Offset": str(offset), "Content-Length": str(announced)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode() + piece)

    def offset(self, path: str) -> int:
        """What the site has."""
        return int(self.ask("HEAD", path).headers["Upload-Offset"])


def test_an_upload_that_was_cut_off_goes_on_where_the_site_says(tmp_path: Path) -> None:
    text = TEXT * 300  # more than one piece
    with serving(tmp_path):
        sender = Sender(where(tmp_path)["url"])
        said = {"filename": "words.txt", "size": len(text)}
        answer = sender.ask("POST", "/uploads/", json.dumps(said).encode(), Content_Type="application/json")
        path, piece = answer.headers["Location"], json.loads(answer.body)["piece"]  # type: ignore[attr-defined]
        assert sender.ask("PATCH", path, text[:piece], Upload_Offset="0").status == 204
        sender.drop(path, piece, piece, text[piece : piece + piece // 2])
        at = sender.offset(path)
        assert at == piece, "half a piece does not count"
        for start in range(at, len(text), piece):
            assert sender.ask("PATCH", path, text[start : start + piece], Upload_Offset=str(start)).status == 204
        assert sender.offset(path) == len(text)
    kept = next((tmp_path / "storage" / "uploads").iterdir())
    assert kept.read_bytes() == text


def test_a_piece_that_is_too_long_is_refused_by_its_length(tmp_path: Path) -> None:
    with serving(tmp_path):
        sender = Sender(where(tmp_path)["url"])
        said = {"filename": "words.txt", "size": 3_000_000}
        answer = sender.ask("POST", "/uploads/", json.dumps(said).encode(), Content_Type="application/json")
        path = answer.headers["Location"]
        host, port = sender.address.split(":")
        lines = {"Host": sender.address, **sender.headers, "Upload-Offset": "0", "Content-Length": "3000000"}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode())
            assert re.match(rb"HTTP/1.1 413 ", line.recv(100))
        assert sender.offset(path) == 0
