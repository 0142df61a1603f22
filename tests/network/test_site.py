"""The HTTP client's requests and responses, tested against a real loopback server whose responses each test sets."""

import asyncio
import errno
import gzip
import json
import os
import socket
import sys
import threading
from functools import partial

import httpx2
import pytest

from peer_agent.network import site
from peer_agent.network.site import Answered, get_bytes, get_json, post_json, sign_request
from peer_agent.protocol.credentials import LINK, REQUEST, Signed, is_signed_by, public_bytes
from peer_agent.protocol.errors import Problem
from tests.network.site_double import Handler, Site, serving
from tests.protocol.identities import TRAINER_KEY

JSON_BOMB = 2 * site.JSON_LIMIT

pytestmark = pytest.mark.usefixtures("a_proxy_that_leads_nowhere")


async def test_an_object_goes_and_another_comes_back(server: Site) -> None:
    def echo(handler: Handler) -> None:
        handler.reply(200, json.dumps({"got": json.loads(handler.body())}).encode())

    url = server.url("/api", echo)
    assert await post_json(url, {"a": 1}, token="secret", headers={"X-More": "1"}) == {"got": {"a": 1}}
    assert await post_json(url, b'{"b": 2}') == {"got": {"b": 2}}
    method, _, headers = server.seen[0]
    assert (method, headers["authorization"], headers["x-more"]) == ("POST", "Bearer secret", "1")
    assert headers["content-type"] == "application/json"
    assert "authorization" not in server.seen[1][2]


async def test_an_empty_answer_is_an_empty_object(server: Site) -> None:
    assert await get_json(server.url("/", lambda handler: handler.reply(204)), token="t") == {}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 416, 429, 500, 503])
async def test_the_sites_own_errors_are_passed_on(server: Site, status: int) -> None:
    body = json.dumps({"code": "E305", "text": "There is no run."}).encode()
    with pytest.raises(Problem, match=r"E305: There is no run\."):
        await get_json(server.url("/", lambda handler: handler.reply(status, body)))


@pytest.mark.parametrize(("said", "wait_s"), [("7", 7.0), ("soon", 0.0), ("-1", 0.0), ("9" * 20, 0.0)])
async def test_a_site_says_when_it_would_like_to_be_asked_again(server: Site, said: str, wait_s: float) -> None:
    body = json.dumps({"code": "E305", "text": "Later."}).encode()
    with pytest.raises(Answered) as refused:
        await get_json(server.url("/", lambda handler: handler.reply(429, body, Retry_After=said)))
    assert refused.value.retry_after_s == wait_s


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, b"<html>not found</html>", "HTTP 404"),
        (502, b'{"detail": "no"}', "HTTP 502"),
        (500, b'{"code": 5, "text": []}', "HTTP 500"),
        (200, b"<html>", "not a JSON object"),
        (200, b"[1]", "not a JSON object"),
        (200, b"\xff", "not a JSON object"),
        (200, b"[" * 100_000, "not a JSON object"),
    ],
)
async def test_anything_else_is_e110(server: Site, status: int, body: bytes, reason: str) -> None:
    with pytest.raises(Problem, match=rf"E110: http://.*{reason}"):
        await get_json(server.url("/", lambda handler: handler.reply(status, body)))


async def test_answers_are_bounded(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "JSON_LIMIT", 100)
    body = json.dumps({"a": "x" * 100}).encode()
    with pytest.raises(Problem, match=r"E110.*more than 100 bytes"):
        await get_json(server.url("/", lambda handler: handler.reply(200, body)))


async def test_what_is_packed_is_not_unpacked(server: Site) -> None:
    bomb = gzip.compress(b'{"a": "' + bytes(JSON_BOMB) + b'"}')
    answer = partial(Handler.reply, status=200, body=bomb, Content_Encoding="gzip")
    with pytest.raises(Problem, match=r"E110.*not a JSON object"):
        await get_json(server.url("/", answer))
    assert server.seen[0][2]["accept-encoding"] == "identity"


async def test_no_connection_is_kept_over_a_restart_of_the_site(server: Site) -> None:
    url = server.url("/", lambda handler: handler.reply(200, b"{}"))
    await get_json(url)
    await get_json(url)
    assert [headers["connection"] for _, _, headers in server.seen] == ["close", "close"]


async def test_a_cancelled_request_hangs_up_at_once(server: Site) -> None:
    asked, hung_up = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end(handler: Handler) -> None:
        loop.call_soon_threadsafe(asked.set)
        handler.rfile.read(1)
        hung_up.set()

    asking = asyncio.create_task(get_json(server.url("/", wait_for_the_end)))
    await asked.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await asyncio.to_thread(hung_up.wait, site.TIMEOUT_S / 2)


async def test_a_refusal_that_breaks_off_is_one(server: Site) -> None:
    with pytest.raises(Problem, match=r"E110.*HTTP 503"):
        await get_json(server.url("/", lambda handler: handler.reply(503, b'{"code', Content_Length="100")))


async def test_nobody_there_is_e104_in_the_systems_words(server: Site) -> None:
    server.server_close()
    with pytest.raises(Problem, match=rf"E104.*\[Errno {errno.ECONNREFUSED}\]"):
        await get_json(f"http://127.0.0.1:{server.server_port}/")


async def test_a_site_that_says_nothing_is_e104_in_time(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "TIMEOUT_S", 0.05)
    done = threading.Event()

    def silence(_: Handler) -> None:
        done.wait()

    with pytest.raises(Problem, match=r"E104.*no answer within 0\.05 seconds"):
        await get_json(server.url("/", silence))
    done.set()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://8.8.8.8/", "E105"),
        ("ftp://127.0.0.1/", "E104"),
        ("file:///etc/passwd", "E104"),
        ("http://127.0.0.1:port/", "E104"),
    ],
)
async def test_addresses_that_are_not_asked(url: str, code: str) -> None:
    with pytest.raises(Problem, match=code):
        await get_json(url)


async def test_a_certificate_that_nobody_vouches_for_is_e104(server: Site) -> None:
    url = server.url("/", lambda handler: handler.reply(200, b"{}"))
    with pytest.raises(Problem, match="E104"):
        await get_json(url.replace("http://", "https://"))


async def test_tls_is_spoken_with_whom_the_system_trusts(secure: Site) -> None:
    assert await get_json(secure.url("/", lambda handler: handler.reply(200, b'{"a": 1}'))) == {"a": 1}


async def test_tls_that_breaks_is_e104(secure: Site) -> None:
    def break_in(handler: Handler) -> None:
        handler.reply(200, b"{", Content_Length="100")
        with socket.socket(fileno=os.dup(handler.connection.fileno())) as below:
            below.sendall(b"this is no TLS, and never was")

    with pytest.raises(Problem, match=r"E104.*SSL"):
        await get_json(secure.url("/", break_in))


async def test_redirect_drops_secrets_and_a_post_is_not_redirected(server: Site) -> None:
    with serving() as elsewhere:
        there = elsewhere.url("/there", lambda handler: handler.reply(200, b'{"a": 1}'))
        here = server.url("/here", lambda handler: handler.reply(307, Location=there))
        secrets = {**sign_request(TRAINER_KEY, b""), "X-Harmless": "1"}
        assert await get_json(here, token="secret", headers=secrets) == {"a": 1}
        with pytest.raises(Problem, match=r"E110.*307"):
            await post_json(here, {})
    ((_, _, headers),) = elsewhere.seen
    assert {"authorization", "x-manyhands-signature"}.isdisjoint(headers)
    assert headers["x-harmless"] == "1"


async def test_a_redirect_into_the_clear_is_refused(server: Site) -> None:
    with pytest.raises(Problem, match="E105"):
        await get_json(server.url("/", lambda handler: handler.reply(302, Location="http://8.8.8.8/")))


async def test_a_redirect_within_the_site_keeps_what_proves_who_asks(server: Site) -> None:
    there = server.url("/there", lambda handler: handler.reply(200, b"{}"))
    here = server.url("/here", lambda handler: handler.reply(301, Location=there))
    assert await get_json(here, token="secret", headers=sign_request(TRAINER_KEY, b"")) == {}
    assert server.seen[1][2]["authorization"] == "Bearer secret"
    assert "x-manyhands-signature" in server.seen[1][2]


async def test_a_redirect_into_tls_takes_no_secrets_along(server: Site, secure: Site) -> None:
    there = secure.url("/there", lambda handler: handler.reply(200, b"{}"))
    here = server.url("/here", lambda handler: handler.reply(302, Location=there))
    assert await get_json(here, token="secret", headers=sign_request(TRAINER_KEY, b"")) == {}
    assert {"authorization", "x-manyhands-signature"}.isdisjoint(secure.seen[0][2])


async def test_redirect_from_tls_to_plaintext_is_refused_even_locally(server: Site, secure: Site) -> None:
    there = server.url("/there", lambda handler: handler.reply(200, b"{}"))
    with pytest.raises(Problem, match="E105"):
        await get_json(secure.url("/here", lambda handler: handler.reply(302, Location=there)))
    assert server.seen == []


async def test_an_object_store_that_is_away_counts_as_not_reached(server: Site) -> None:
    with serving() as store:
        there = store.url("/there", lambda handler: handler.reply(503))
        here = server.url("/here", lambda handler: handler.reply(302, Location=there))
        with pytest.raises(Problem, match=r"E104.*HTTP 503"):
            await get_bytes(here, limit=1)
        with pytest.raises(Problem, match=r"E110.*HTTP 503"):
            await get_bytes(there, limit=1)


async def test_a_circle_of_redirects_is_left(server: Site) -> None:
    with pytest.raises(Problem, match=r"E110.*302"):
        await get_json(server.url("/", lambda handler: handler.reply(302, Location="/")))
    assert len(server.seen) == 1 + site.REDIRECTS


async def test_what_a_redirect_says_beside_where_is_not_read(server: Site) -> None:
    there, done = server.url("/there", lambda handler: handler.reply(200, b"{}")), threading.Event()

    def talk(handler: Handler) -> None:
        handler.reply(302, b"more", Location=there, Content_Length=str(1 << 40))
        done.wait()

    assert await get_json(server.url("/here", talk)) == {}
    done.set()


@pytest.mark.parametrize("address", ["http://10.1.2.3/", "https://10.1.2.3/"])
async def test_proxy_that_wants_a_log_in_says_how(server: Site, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    own = f"http://127.0.0.1:{server.server_port}/"
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, own)
    server.url(address if address.startswith("http:") else "10.1.2.3:443", lambda handler: handler.reply(407))
    with pytest.raises(Problem, match=r"E104.*http://NAME:PASSWORD@HOST:PORT"):
        await get_json(address)


async def test_socks_proxy_names_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9/")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(Problem, match=r"E104.*pip install socksio"):
        await get_json("http://10.1.2.3/")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
async def test_elsewhere_the_proxy_of_the_environment_is_asked(
    server: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(other)
    # this SOCKS proxy is ignored, since there is an HTTP proxy
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9/")
    monkeypatch.setenv(name, f"127.0.0.1:{server.server_port}")
    server.url("http://10.1.2.3/", lambda handler: handler.reply(200, b'{"by": "proxy"}'))
    assert await get_json("http://10.1.2.3/") == {"by": "proxy"}
    monkeypatch.setenv("no_proxy", "10.1.2.3")
    assert site._proxy(httpx2.URL("http://10.1.2.3/")) is None


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9/", "strange://127.0.0.1:9/", "http://[bad/"])
async def test_a_proxy_that_cannot_be_spoken_to_is_e104(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(Problem, match="E104"):
        await get_json("http://10.1.2.3/")


async def test_a_mistake_of_ours_is_no_fault_of_the_network(server: Site) -> None:
    with pytest.raises(UnicodeEncodeError):
        await get_json(server.url("/", lambda handler: handler.reply(204)), token="“")
    with pytest.raises(ValueError, match="of whoever asks"):
        async with site._opened("GET", server.url("/", lambda handler: handler.reply(204)), {}):
            raise ValueError("of whoever asks")


def test_a_signature_is_for_a_request_and_its_body() -> None:
    headers = sign_request(TRAINER_KEY, b"body")
    signature = bytes.fromhex(headers.pop("X-Manyhands-Signature"))
    assert headers == {}
    public = public_bytes(TRAINER_KEY)
    assert is_signed_by(public, REQUEST, Signed(b"body", signature))
    assert not is_signed_by(public, REQUEST, Signed(b"bodies", signature))
    assert not is_signed_by(public, LINK, Signed(b"body", signature))
