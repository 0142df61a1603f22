"""Pages and JSON are compressed; files and partial answers are not."""

import gzip

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory

from runs.models import Run
from web.http.middleware import compressed

LONG = b"Many hands make light work. " * 100


def sent(response: HttpResponse | StreamingHttpResponse, accepts: str = "gzip") -> HttpResponse:
    def get_response(_: HttpRequest) -> HttpResponse:
        return response  # type: ignore[return-value]

    asked = RequestFactory().get("/", headers={"Accept-Encoding": accepts})
    return compressed(get_response)(asked)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json", "image/svg+xml", "text/csv"])
def test_what_is_text_is_compressed(kind: str) -> None:
    answer = sent(HttpResponse(LONG, content_type=kind))
    assert answer["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.content) == LONG
    assert len(answer.content) < len(LONG) / 2
    assert "Accept-Encoding" in answer["Vary"]


def test_who_does_not_take_it_gets_it_plain() -> None:
    assert sent(HttpResponse(LONG), accepts="identity").content == LONG


@pytest.mark.parametrize("kind", ["application/octet-stream", "image/png", "application/zip"])
def test_files_stay_as_they_are(kind: str) -> None:
    assert "Content-Encoding" not in sent(HttpResponse(LONG, content_type=kind))


def test_what_streams_or_is_a_part_stays_as_it_is() -> None:
    assert "Content-Encoding" not in sent(StreamingHttpResponse([LONG], content_type="text/plain"))
    assert "Content-Encoding" not in sent(HttpResponse(LONG, status=206, content_type="text/plain"))


def test_a_page_that_has_not_changed_is_not_sent_again(client: Client, run: Run) -> None:
    """The ETag of a compressed answer is weak and must still match."""
    badge = f"/runs/{run.slug}/badge.svg"
    first = client.get(badge, headers={"Accept-Encoding": "gzip"})
    assert first["Content-Encoding"] == "gzip"
    again = client.get(badge, headers={"Accept-Encoding": "gzip", "If-None-Match": first["ETag"]})
    assert again.status_code == 304
