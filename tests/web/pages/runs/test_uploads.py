"""Uploads in pieces with tus 1.0.0, also over a connection that breaks midway, against a real site."""

import base64
import errno
import http.client
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from accounts.models import Person
from demo.visitor import CSRF, Visitor
from runs import storage
from runs.datasets import uploads
from runs.models import Upload
from tests.server.test_serve import serving, where
from tests.web.browsing import as_

TEXT = "Many hands, много рук.\n".encode() * 200


VERSION = {"Tus-Resumable": "1.0.0"}
KIND = "application/offset+octet-stream"


def announcement(size: object = len(TEXT), filename: str = "words.txt") -> dict[str, str]:
    name = base64.b64encode(filename.encode()).decode()
    return {**VERSION, "Upload-Length": str(size), "Upload-Metadata": f"filename {name}"}


def announce(client: Client, **headers: str) -> Any:
    return client.post("/uploads/", content_type="", headers={**announcement(), **headers})


def send(client: Client, path: str, offset: object, piece: bytes, kind: str = KIND) -> Any:
    return client.patch(path, piece, content_type=kind, headers={**VERSION, "Upload-Offset": str(offset)})


def look(client: Client, path: str) -> Any:
    return client.head(path, headers=VERSION)


def forget(client: Client, path: str) -> Any:
    return client.delete(path, headers=VERSION)


def test_announced_sent_asked_about_and_sent_on(organizer: Person) -> None:
    client = as_(organizer)
    answer = announce(client)
    assert (answer.status_code, answer.content) == (201, b"")
    path = answer["Location"]
    assert look(client, path)["Upload-Offset"] == "0"
    first = send(client, path, 0, TEXT[:1001])
    assert (first.status_code, first["Upload-Offset"]) == (204, "1001")
    asked = look(client, path)
    assert (asked["Upload-Offset"], asked["Upload-Length"]) == ("1001", str(len(TEXT)))
    assert "no-store" in asked["Cache-Control"]
    assert send(client, path, 1001, TEXT[1001:])["Upload-Offset"] == str(len(TEXT))
    assert storage.upload_path(Upload.objects.get()).read_bytes() == TEXT
    assert forget(client, path).status_code == 204
    assert not Upload.objects.exists()
    assert look(client, path).status_code == 404


@pytest.mark.parametrize("path", ["/uploads/", "/uploads/6f9d2c1a-0b7e-4c55-9d3e-1f0a5b2c7d88/"], ids=["all", "one"])
def test_who_asks_is_told_what_the_site_can_do(organizer: Person, settings: Any, path: str) -> None:
    settings.UPLOAD_LIMIT_MB = 3
    answer = as_(organizer).options(path)
    assert (answer.status_code, answer.content) == (204, b"")
    told = {name: answer[name] for name in ("Tus-Resumable", "Tus-Version", "Tus-Extension", "Tus-Max-Size")}
    assert list(told.values()) == ["1.0.0", "1.0.0", "creation,termination", "3000000"]
    assert Client().options(path).status_code == 401


@pytest.mark.parametrize("version", ["", "0.2.2", "1.0.1", "1.0.0" * 1000])
def test_another_version_of_tus_is_refused_with_ours(organizer: Person, version: str) -> None:
    client = as_(organizer)
    path = announce(client)["Location"]
    other = {"Tus-Resumable": version} if version else {}
    answers = [
        client.post("/uploads/", headers={**announcement(), "Tus-Resumable": version}),
        client.head(path, headers=other),
        client.patch(path, TEXT, content_type=KIND, headers={**other, "Upload-Offset": "0"}),
        client.delete(path, headers=other),
    ]
    assert [answer.status_code for answer in answers] == [412] * 4
    assert [(answer["Tus-Resumable"], answer["Tus-Version"]) for answer in answers] == [("1.0.0", "1.0.0")] * 4
    assert answers[0].json()["code"] == "E368"
    assert len(answers[0].content) < 300
    assert Upload.objects.get().offset == 0


def test_every_answer_says_its_version(organizer: Person) -> None:
    client = as_(organizer)
    path = announce(client)["Location"]
    answers = [
        announce(client),
        announce(client, **{"Upload-Length": "0"}),
        look(client, path),
        send(client, path, 7, TEXT),
        send(client, path, 0, TEXT),
        forget(client, path),
        look(client, path),
        announce(Client()),
    ]
    assert [answer.status_code for answer in answers] == [201, 400, 204, 409, 204, 204, 404, 401]
    assert [answer["Tus-Resumable"] for answer in answers] == ["1.0.0"] * len(answers)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Upload-Length": str(10**12)}, 413, "E304"),
        ({"Upload-Length": "0"}, 400, "E303"),
        ({"Upload-Length": "x"}, 400, "E375"),
        ({"Upload-Length": "-1"}, 400, "E375"),
        ({"Upload-Length": "9" * 5000}, 400, "E375"),
        ({"Upload-Length": "", "Upload-Defer-Length": "1"}, 400, "E375"),
        ({"Upload-Metadata": "filename wo!ds"}, 400, "E375"),
        ({"Upload-Metadata": "filename d29yZHM"}, 400, "E375"),
        ({"Upload-Metadata": "filename /w=="}, 400, "E375"),
        ({"Upload-Metadata": "filename wörds"}, 400, "E375"),
        ({"Upload-Metadata": "filename d29yZHM=,filename d29yZHM="}, 400, "E375"),
        ({"Upload-Metadata": "filename d29yZHM=,"}, 400, "E375"),
        ({"Upload-Metadata": "," * 100}, 400, "E375"),
        ({"Upload-Metadata": f"filename {'d29y' * 1024}"}, 400, "E375"),
    ],
)
def test_what_is_refused_before_a_byte_is_sent(
    organizer: Person, headers: dict[str, str], status: int, code: str
) -> None:
    answer = announce(as_(organizer), **headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert len(answer.content) < 300
    assert not Upload.objects.exists()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", "text.txt"),
        ("filetype dGV4dC9wbGFpbg==", "text.txt"),
        ("is_confidential,filename 6LCa6K+tLnR4dA==", "谚语.txt"),
        ("filename 6LCa6K+tLnR4dA==, filetype dGV4dC9wbGFpbg==", "谚语.txt"),
        ("filename", "text.txt"),
        (f"filename {base64.b64encode(b'../' + 3000 * b'x').decode()}", 200 * "x"),
    ],
)
def test_a_name_is_taken_from_the_metadata(organizer: Person, said: str, kept: str) -> None:
    assert announce(as_(organizer), **{"Upload-Metadata": said}).status_code == 201
    assert Upload.objects.get().filename == kept


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "x" * 5000])
def test_a_piece_of_another_kind_is_refused(organizer: Person, kind: str) -> None:
    client = as_(organizer)
    answer = send(client, announce(client)["Location"], 0, TEXT, kind)
    assert (answer.status_code, answer.json()["code"]) == (415, "E369")
    assert len(answer.content) < 300
    assert Upload.objects.get().offset == 0


@pytest.mark.parametrize("offset", ["", "-1", "x", "7", "9" * 5000])
def test_a_piece_for_another_place_is_refused(organizer: Person, offset: str) -> None:
    client = as_(organizer)
    answer = send(client, announce(client)["Location"], offset, TEXT)
    assert (answer.status_code, answer.json()["code"]) == (409, "E319")
    assert Upload.objects.get().offset == 0


def test_an_upload_whose_bytes_are_gone_is_begun_anew(organizer: Person) -> None:
    """Bytes can be missing if, for example, an operator restored only the database tables."""
    client = as_(organizer)
    path = announce(client)["Location"]
    send(client, path, 0, TEXT[:1000])
    storage.upload_path(Upload.objects.get()).unlink()
    answer = send(client, path, 1000, TEXT[1000:])
    assert (answer.status_code, answer.json()["code"]) == (404, "E318")


def test_an_upload_that_another_tab_forgets_meanwhile_is_gone(
    organizer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, found = as_(organizer), uploads.upload_of

    def forgotten(*who: Any) -> Upload:
        upload = found(*who)
        Upload.objects.all().delete()
        return upload

    path = announce(client)["Location"]
    monkeypatch.setattr(uploads, "upload_of", forgotten)
    answer = send(client, path, 0, TEXT)
    assert (answer.status_code, answer.json()["code"]) == (404, "E318")


def test_full_disk_is_reported_and_the_upload_resumes_later(organizer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/srv/hands/upload")

    client = as_(organizer, raise_request_exception=False)
    path = announce(client)["Location"]
    with monkeypatch.context() as patch:
        patch.setattr(uploads, "_write", full)
        answer = send(client, path, 0, TEXT)
    assert (answer.status_code, answer.json()["code"]) == (507, "E328")
    assert "/srv" not in answer.json()["text"]
    assert send(client, path, 0, TEXT)["Upload-Offset"] == str(len(TEXT))


class Sender:
    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        visitor = Visitor(url)
        visitor.submit("/signup/", {"username": "Amina", "password": "correct horse battery staple"})
        token = CSRF.search(visitor.read("/runs/new/"))
        assert token is not None
        opener: Any = visitor._opener
        (cookies,) = (handler.cookiejar for handler in opener.handlers if hasattr(handler, "cookiejar"))
        cookie = "; ".join(f"{cookie.name}={cookie.value}" for cookie in cookies)
        self.headers = {"Cookie": cookie, "X-CSRFToken": token[1], **VERSION, "Content-Type": KIND}

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> "http.client.HTTPResponse":
        connection = http.client.HTTPConnection(self.address, timeout=30)
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {**self.headers, **extra})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def announce(self, size: int) -> str:
        lines = {name.replace("-", "_"): value for name, value in announcement(size).items()}
        return str(self.ask("POST", "/uploads/", b"", **lines).headers["Location"])

    def drop(self, path: str, offset: int, announced: int, piece: bytes) -> None:
        """Announce a size, send fewer bytes, and close the connection."""
        lines = {"Host": self.address, **self.headers, "Upload-Offset": str(offset), "Content-Length": str(announced)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode() + piece)

    def offset(self, path: str) -> int:
        return int(self.ask("HEAD", path).headers["Upload-Offset"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[tuple[Path, Sender]]:
    data = tmp_path_factory.mktemp("site")
    shutil.copy(migrated_sqlite, data)
    with serving(data) as site:
        yield data, Sender(where(data, site)["url"])


def test_an_upload_that_was_cut_off_goes_on_where_the_site_says(served: tuple[Path, Sender]) -> None:
    text = TEXT * 300  # longer than one piece
    data, sender = served
    path, piece = sender.announce(len(text)), uploads.PIECE_BYTES
    assert sender.ask("PATCH", path, text[:piece], Upload_Offset="0").status == 204
    sender.drop(path, piece, piece, text[piece : piece + piece // 2])
    at = sender.offset(path)
    assert at == piece, "half a piece does not count"
    for start in range(at, len(text), piece):
        assert sender.ask("PATCH", path, text[start : start + piece], Upload_Offset=str(start)).status == 204
    assert sender.offset(path) == len(text)
    assert text in [kept.read_bytes() for kept in (data / "storage" / "uploads").iterdir()]


def test_a_piece_that_is_too_long_is_refused_by_its_length(served: tuple[Path, Sender]) -> None:
    _, sender = served
    path = sender.announce(3_000_000)
    host, port = sender.address.split(":")
    lines = {"Host": sender.address, **sender.headers, "Upload-Offset": "0", "Content-Length": "3000000"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(f"PATCH {path} HTTP/1.1\r\n{head}\r\n".encode())
        assert re.match(rb"HTTP/1.1 413 ", line.recv(100))
    assert sender.offset(path) == 0
