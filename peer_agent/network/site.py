"""The agent's HTTP client to the site: small JSON, and files that are resumed and checked.

Everything blocking runs in a thread. Knows no address of the site's API.
"""

import asyncio
import errno
import hashlib
import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer_agent.network.addresses import check_encrypted, is_loopback
from peer_agent.network.traffic import TRAFFIC
from peer_agent.protocol.credentials import REQUEST, sign
from peer_agent.protocol.errors import Fault, Problem

TIMEOUT_S = 30.0  # for connecting, and for each wait for more
JSON_LIMIT = 16 * 1024 * 1024  # bytes
ERROR_LIMIT = 64 * 1024
BLOCK = 256 * 1024
SECRET_HEADERS = ("Authorization", "X-Manyhands-Signature")

Headers = Mapping[str, str]
Progress = Callable[[int, int], None]


class Answered(Problem):
    """A site's own numbered error. `retry_after_s`: when it would like to be asked again; 0 where it does not say."""

    def __init__(self, fault: Fault, retry_after_s: float = 0.0) -> None:
        super().__init__(fault)
        self.retry_after_s = retry_after_s


def sign_request(key: Ed25519PrivateKey, body: bytes) -> dict[str, str]:
    """The header that proves that a request with this body comes from the machine that holds the key."""
    return {"X-Manyhands-Signature": sign(key, REQUEST, body).signature.hex()}


async def post_json(
    url: str, body: Mapping[str, Any] | bytes, token: str | None = None, headers: Headers | None = None
) -> dict[str, Any]:
    """POST an object (bytes: already encoded, as they were signed) and read one.

    Raises Problem: the site's own where it gives one, E104 where it is not reached, E105, E110.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **_bearer(token), **(headers or {})}
    return await asyncio.to_thread(_ask, url, "POST", sent, data)


async def get_json(url: str, token: str | None = None, headers: Headers | None = None) -> dict[str, Any]:
    """GET an object. Raises Problem as `post_json`."""
    return await asyncio.to_thread(_ask, url, "GET", {**_bearer(token), **(headers or {})})


async def clock_of(url: str) -> float | None:
    """What the clock of whoever answers at `url` says, in seconds of UTC and to the second; None where it has none.

    Raises Problem as `post_json`.
    """
    return await asyncio.to_thread(_clock_of, url)


def _clock_of(url: str) -> float | None:
    with _opened(_request(url, "GET", {})) as response:
        try:
            return parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
        except (TypeError, ValueError):
            return None


async def upload(url: str, path: Path, headers: Headers | None = None) -> dict[str, Any]:
    """PUT a file and read the object that is answered ({} where nothing is). Raises Problem as `post_json`."""
    return await asyncio.to_thread(_put, url, path, headers or {})


async def download(
    url: str,
    path: Path,
    *,
    sha256: str,
    size_limit: int,
    headers: Headers | None = None,
    progress: Progress | None = None,
) -> None:
    """Fetch a file to `path`, going on where an earlier attempt stopped; `path` exists only when its digest is right.

    `progress(bytes so far, bytes in all or -1)` is called in the loop. Raises Problem: E106 (disk), E110 (too
    large), E111 (damaged), and as `post_json`.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()

    def tell(done: int, total: int) -> None:
        if progress is not None:
            loop.call_soon_threadsafe(progress, done, total)

    fetch = _Download(url, path, sha256=sha256, size_limit=size_limit, headers=headers or {}, tell=tell, stop=stop)
    try:
        await asyncio.to_thread(fetch.run)
    finally:
        stop.set()  # a thread cannot be cancelled; it looks at this between two blocks


class _Download:
    """One file on its way to the disk. Runs in a thread."""

    def __init__(
        self,
        url: str,
        path: Path,
        *,
        sha256: str,
        size_limit: int,
        headers: Headers,
        tell: Progress,
        stop: threading.Event,
    ) -> None:
        self.url, self.path, self.sha256, self.size_limit = url, path, sha256, size_limit
        self.headers, self.tell, self.stop = headers, tell, stop
        self.partial = path.with_name(path.name + ".part")

    def run(self) -> None:
        resumed = self._fetch()
        if not self._is_right() and resumed:
            self._discard()  # the damage may be in what an earlier attempt left
            self._fetch()
        if not self._is_right():
            self._discard()
            raise Problem.of("E111", name=self.path.name, url=self.url)
        with _disk(self.path):
            self.partial.replace(self.path)

    def _fetch(self) -> bool:
        """Complete the partial file. True: some of it was there already."""
        with _disk(self.partial):
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            have = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {**self.headers, "Range": f"bytes={have}-"} if have else self.headers
        try:
            with _opened(_request(self.url, "GET", headers)) as response:
                self._write(response, have if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0)
        except _RangeRefusedError:
            pass  # there is nothing beyond what is here: the digest decides
        return have > 0

    def _write(self, response: http.client.HTTPResponse, start: int) -> None:
        total = start + response.length if response.length is not None else -1
        done = start
        if total > self.size_limit:
            self._refuse()
        with _disk(self.partial), self.partial.open("ab" if start else "wb") as file:
            while block := _read(self.url, response, BLOCK):
                if self.stop.is_set():  # nobody waits for this any more; what is here is for the next time
                    raise Problem.of("E104", url=self.url, reason="it was stopped")
                done += len(block)
                TRAFFIC.add(received=len(block))
                if done > self.size_limit:
                    self._refuse()
                file.write(block)
                self.tell(done, total)
        if done < total:
            raise Problem.of("E104", url=self.url, reason=f"it ended after {done} of {total} bytes")

    def _refuse(self) -> None:
        self._discard()
        raise Problem.of("E110", url=self.url, reason=f"more than {self.size_limit} bytes")

    def _is_right(self) -> bool:
        with _disk(self.partial), self.partial.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def _discard(self) -> None:
        with _disk(self.partial):
            self.partial.unlink(missing_ok=True)


class _RangeRefusedError(Exception):
    """HTTP 416."""


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token is not None else {}


def _request(url: str, method: str, headers: Headers, data: Any = None) -> urllib.request.Request:
    check_encrypted(url, secure="https", plain="http")
    return urllib.request.Request(url, data=data, headers=dict(headers), method=method)  # noqa: S310 (checked above)


def _put(url: str, path: Path, headers: Headers) -> dict[str, Any]:
    with _disk(path), path.open("rb") as file:
        sent = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size), **headers}
        return _ask(url, "PUT", sent, _counted(iter(partial(file.read, BLOCK), b"")))


def _counted(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Asked for the next one, the last has gone into the socket."""
    for block in blocks:
        yield block
        TRAFFIC.add(sent=len(block))


def _ask(url: str, method: str, headers: Headers, data: Any = None) -> dict[str, Any]:
    with _opened(_request(url, method, headers, data)) as response:
        data = _read(url, response, JSON_LIMIT + 1)
    if len(data) > JSON_LIMIT:
        raise Problem.of("E110", url=url, reason=f"more than {JSON_LIMIT} bytes")
    answer = _object(data or b"{}")
    if answer is None:
        raise Problem.of("E110", url=url, reason="no JSON object")
    return answer


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


@contextmanager
def _opened(request: urllib.request.Request) -> Iterator[http.client.HTTPResponse]:
    """The response to a request, where it is a good one."""
    url = request.full_url
    try:
        response: http.client.HTTPResponse = _opener(url).open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise Problem.of("E104", url=url, reason=getattr(error, "reason", error)) from error
    with response:
        yield response


def _refusal(url: str, error: urllib.error.HTTPError) -> Problem | _RangeRefusedError:
    """The site's own words where there are some."""
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return _RangeRefusedError()
    try:
        said = _object(error.read(ERROR_LIMIT)) or {}
    except (http.client.HTTPException, OSError):
        said = {}
    match said:
        case {"code": str(code), "text": str(text)}:
            return Answered(Fault(code, text), _retry_after_s(error))
    return Problem.of("E110", url=url, reason=f"HTTP {error.code}")


def _retry_after_s(error: urllib.error.HTTPError) -> float:
    said = error.headers.get("Retry-After", "") if error.headers else ""
    return float(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0.0


def _read(url: str, response: IO[bytes], size: int) -> bytes:
    try:
        return response.read(size)
    except (http.client.HTTPException, OSError) as error:
        raise Problem.of("E104", url=url, reason=error) from error


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What goes wrong inside is the disk's doing: E106."""
    try:
        yield
    except OSError as error:
        reason = "it is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or error
        raise Problem.of("E106", path=path, reason=reason) from error


def _opener(url: str) -> urllib.request.OpenerDirector:
    """No proxy for this machine; the system's certificates; redirects as `_Redirects` allows."""
    secure = _Https(context=ssl.create_default_context())
    handlers: list[urllib.request.BaseHandler] = [_Http(), secure, _Redirects()]
    if is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A GET may be sent elsewhere, as to an object store, but never in the clear and never with our secrets."""

    def redirect_request(  # noqa: PLR0917 (urllib's signature)
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.get_method() != "GET":
            return None
        check_encrypted(newurl, secure="https", plain="http")
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            for name in SECRET_HEADERS:
                followed.remove_header(name.capitalize())
        return followed


class _HearsOut(http.client.HTTPConnection):
    """A site that refuses a file says so and hangs up while we still send; its answer matters, not the broken pipe."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().request(*args, **kwargs)
        except (BrokenPipeError, ConnectionResetError):
            if self.sock is None:
                raise


class _HearsOutSecurely(_HearsOut, http.client.HTTPSConnection):
    """The same under TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HearsOut, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trusting = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HearsOutSecurely, req, context=self._trusting)
