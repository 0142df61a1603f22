"""An HTTP client for the site. It exchanges small JSON objects, uploads files, and resumes and verifies downloads.

Every request uses its own connection, because idle connections break when the site restarts. Bodies are streamed and
never decompressed, so size limits also limit memory.
"""

import asyncio
import hashlib
import json
import os
import ssl
import threading
from collections.abc import AsyncIterator, Container, Iterator, Mapping
from concurrent.futures import wait
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.request import getproxies, proxy_bypass

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID

from peer_agent.network.addresses import check_encrypted, is_loopback
from peer_agent.network.uplink import DOWNLINK, TRAFFIC, UPLINK, Stream
from peer_agent.protocol.credentials import REQUEST, sign
from peer_agent.protocol.errors import Fault, Problem, disk_errors

TIMEOUT_S = 30.0  # deadline for connecting, and for each read
JSON_LIMIT = 16 * 1024 * 1024  # maximum bytes in a JSON response
ERROR_LIMIT = 64 * 1024
BLOCK = 256 * 1024
REDIRECTS = 10
HTTPS_PORT, ISSUER_S = 443, 5.0
LOOK_S = 0.5  # seconds between checks that the caller is still waiting for an upload
FIXED_HEADERS = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "manyhands"}
SECRET_HEADERS = ("Authorization", "X-Manyhands-Signature")
SUCCESS = range(200, 300)
RANGE_REFUSED = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
LOST = (httpx2.HTTPError, ssl.SSLError)  # errors from a failed connection; httpx2 passes some TLS errors on unchanged

Headers = Mapping[str, str]


class Answered(Problem):
    """A numbered error in the site's response. `retry_after_s`: seconds that the site asks to wait, or 0."""

    def __init__(self, fault: Fault, retry_after_s: float = 0.0) -> None:
        super().__init__(fault)
        self.retry_after_s = retry_after_s


def sign_request(key: Ed25519PrivateKey, body: bytes) -> dict[str, str]:
    """Return a header with the machine's signature of the body."""
    return {"X-Manyhands-Signature": sign(key, REQUEST, body).signature.hex()}


async def post_json(
    url: str, body: Mapping[str, Any] | bytes, token: str | None = None, headers: Headers | None = None
) -> dict[str, Any]:
    """POST a JSON object, and return the JSON object in the site's response. Pass `body` as bytes if it is signed.

    Raises Problem with the numbered error that the site reports. Otherwise, raises Problem E104 if the site cannot be
    reached, E105 if the URL is plaintext outside the local network, and E110 if the response is unusable.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await _ask("POST", url, {"Content-Type": "application/json", **_bearer(token), **(headers or {})}, data)


async def get_json(url: str, token: str | None = None, headers: Headers | None = None) -> dict[str, Any]:
    """GET a JSON object.

    Raises Problem with the numbered error that the site reports. Otherwise, raises Problem E104 if the site cannot be
    reached, E105 if the URL is plaintext outside the local network, and E110 if the response is unusable.
    """
    return await _ask("GET", url, {**_bearer(token), **(headers or {})})


async def get_bytes(url: str, *, limit: int, headers: Headers | None = None) -> bytes:
    """GET a small file into memory.

    Raises Problem E110 if the file is longer than `limit` bytes, and otherwise as `post_json` does.
    """
    async with _opened("GET", url, headers or {}) as response:
        body = await _body(response, limit)
    if len(body) > limit:
        raise Problem.of("E110", url=url, reason=f"it is longer than {limit} bytes")
    return body


async def greeting_of(url: str) -> float | None:
    """Return the site's time in whole UTC seconds, or None if the site sends no date.

    `url`: the site's address for health checks. Raises Problem E448 if something other than the site answers, such as a
    network's login page, and otherwise as `post_json` does.
    """
    async with _opened("GET", url, {}) as response:
        said = _object(await _body(response, ERROR_LIMIT))
        if said is None or said.get("status") != "alive":
            kind = response.headers.get("Content-Type", "").partition(";")[0] or "nothing that can be read"
            raise Problem.of("E448", url=url.removesuffix("/healthz"), kind=kind)
        try:
            return parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
        except (TypeError, ValueError):
            return None


def issuer_of(url: str) -> str:
    """Return the name of the issuer of the certificate at an address, or "" if no certificate can be read.

    Does not verify the certificate.
    """
    where = httpx2.URL(url)
    try:
        given = ssl.get_server_certificate((where.host, where.port or HTTPS_PORT), timeout=ISSUER_S)
        issuer = load_pem_x509_certificate(given.encode()).issuer
    except (OSError, ValueError):
        return ""
    names = [part.value for part in issuer if part.oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)]
    return ", ".join(str(name) for name in names)


async def upload(url: str, path: Path, headers: Headers | None = None) -> dict[str, Any]:
    """PUT a file. Return the JSON object in the response, or {} if the response is empty.

    Raises Problem E106 if the file cannot be read, and otherwise as `post_json` does.
    """
    given_up, loop = threading.Event(), asyncio.get_running_loop()
    try:
        return await asyncio.to_thread(_put, url, path, headers or {}, _Sending(loop, given_up))
    finally:
        given_up.set()


async def download(url: str, path: Path, *, sha256: str, size_limit: int, headers: Headers | None = None) -> None:
    """Download a file to `path`, resuming a partial download, and check its SHA-256.

    Raises Problem E106 if the disk fails, E110 if the file is too large, E111 if its digest is wrong, and otherwise as
    `post_json` does.
    """
    fetch = _Download(url, path, size_limit=size_limit, headers=headers or {})
    for _ in range(2):  # an earlier attempt may have left damaged bytes; the second attempt starts afresh
        was_resumed = await fetch.complete()
        if await fetch.kept(sha256):
            return
        if not was_resumed:
            break
    raise Problem.of("E111", name=path.name, url=url)


class _Download:
    def __init__(self, url: str, path: Path, *, size_limit: int, headers: Headers) -> None:
        self.url, self.path, self.size_limit, self.headers = url, path, size_limit, headers
        self.partial = path.with_name(path.name + ".part")

    async def complete(self) -> bool:
        """Download the rest of the partial file. Return True if an earlier attempt had left some bytes."""
        with disk_errors(self.partial):
            have = await asyncio.to_thread(_bytes_there, self.partial)
        headers = {**self.headers, "Range": f"bytes={have}-"} if have else self.headers
        good = (*SUCCESS, RANGE_REFUSED) if have else SUCCESS
        async with _opened("GET", self.url, headers, good=good) as response:
            # A refused range means that there is nothing more to download. The caller then checks the digest.
            if response.status_code != RANGE_REFUSED:
                await self._write(response, have if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0)
        return have > 0

    async def kept(self, sha256: str) -> bool:
        """If the partial file's digest matches `sha256`, move it into place and return True. Otherwise, delete it."""
        with disk_errors(self.path):
            is_right = await asyncio.to_thread(_sha256, self.partial) == sha256
            if is_right:
                await asyncio.to_thread(self.partial.replace, self.path)
            else:
                await self._discard()
        return is_right

    async def _write(self, response: httpx2.Response, start: int) -> None:
        length = _whole_number(response.headers.get("Content-Length", ""))
        size = start + length if length >= 0 else -1
        if size <= self.size_limit:
            with disk_errors(self.partial), await asyncio.to_thread(self.partial.open, "ab" if start else "wb") as file:
                size = await self._append(file, response, start, size)
        if size > self.size_limit:
            await self._discard()  # after closing the file, because Windows cannot delete open files
            raise Problem.of("E110", url=self.url, reason=f"more than {self.size_limit} bytes")

    async def _append(self, file: IO[bytes], response: httpx2.Response, start: int, total: int) -> int:
        """Append the response's body to `file`. Return the file's final length.

        If the body is too long, stop reading, and return a length that exceeds the limit.
        """
        done = start
        try:
            async with aclosing(response.aiter_raw(BLOCK)) as blocks:
                async for block in blocks:
                    done += len(block)
                    TRAFFIC.add(received=len(block))
                    await DOWNLINK.came(len(block))
                    if done > self.size_limit:
                        break
                    await asyncio.to_thread(file.write, block)
        except LOST as error:
            known = f"{done} of {total}" if total >= 0 else str(done)
            reason = f"{_reason(error)}, after {known} bytes"
            raise Problem.of("E104", url=self.url, reason=reason) from error
        return done

    async def _discard(self) -> None:
        with disk_errors(self.partial):
            await asyncio.to_thread(self.partial.unlink, missing_ok=True)


def _bytes_there(path: Path) -> int:
    """Return a file's length, or 0 if the file does not exist. Creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _ask(method: str, url: str, headers: Headers, content: bytes = b"") -> dict[str, Any]:
    async with _opened(method, url, headers, content) as response:
        return _answer(url, await _body(response, JSON_LIMIT))


@asynccontextmanager
async def _opened(
    method: str, url: str, headers: Headers, content: bytes = b"", *, good: Container[int] = SUCCESS
) -> AsyncIterator[httpx2.Response]:
    """Send a request, and open the response if its status is in `good`.

    Raises Problem as `post_json` does.
    """
    with _in_words(url):
        request = httpx2.Request(method, url, headers={**FIXED_HEADERS, **headers}, content=content)
        async with AsyncExitStack() as stack:
            response = await _send(request, stack)
            if response.status_code in good:
                yield response
                return
            said = b""
            with suppress(*LOST):  # an error with a truncated body is still the site's error
                said = await _body(response, ERROR_LIMIT)
            raise _refusal(url, response, said)


async def _send(request: httpx2.Request, stack: AsyncExitStack) -> httpx2.Response:
    """Send a request and return the response. Only GET follows redirects, such as to an object store."""
    for _ in range(1 + REDIRECTS):
        settings = await asyncio.to_thread(_settings, request.url)
        with _proxy_in_words(request.url):
            client = httpx2.AsyncClient(**settings)
        response = await (await stack.enter_async_context(client)).send(request, stream=True)
        stack.push_async_callback(response.aclose)
        if request.method != "GET" or response.next_request is None:
            break
        request = _redirected(request, response.next_request)
    return response


def _redirected(request: httpx2.Request, following: httpx2.Request) -> httpx2.Request:
    """Return the request to make after a redirect. Remove secrets from it if the redirect leads to another origin.

    Raises Problem E105 if the redirect leads from https to http.
    """
    if request.url.scheme == "https" and following.url.scheme == "http":
        raise Problem.of("E105", url=following.url)
    if following.url.origin != request.url.origin:
        for name in SECRET_HEADERS:
            following.headers.pop(name, None)
    return following


async def _body(response: httpx2.Response, limit: int) -> bytes:
    """Return the body without decoding it. If it is longer than `limit`, stop reading shortly after `limit` bytes."""
    body = bytearray()
    async with aclosing(response.aiter_raw()) as blocks:
        async for block in blocks:
            body += block
            if len(body) > limit:
                break
    return bytes(body)


class _Sending:
    """An upload in a thread. It shares the uplink with the process's links, and stops if its caller is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, given_up: threading.Event) -> None:
        self._loop, self._given_up = loop, given_up

    def counted(self, file: IO[bytes], size: int) -> Iterator[bytes]:
        """Yield blocks of the file as the uplink grants them, and count their bytes as sent.

        Raises WriteError if the upload's caller is cancelled.
        """
        stream = UPLINK.stream(size)
        while block := file.read(BLOCK):
            if self._given_up.is_set():
                raise httpx2.WriteError("given up")
            if UPLINK.is_paced:
                self._wait_for_turn(stream, len(block))
            yield block
            TRAFFIC.add(sent=len(block))

    def _wait_for_turn(self, stream: Stream, size: int) -> None:
        turn = asyncio.run_coroutine_threadsafe(stream.turn(size), self._loop)
        while not wait([turn], LOOK_S).done:
            if self._given_up.is_set() or not self._loop.is_running():
                turn.cancel()
                raise httpx2.WriteError("given up")


def _put(url: str, path: Path, headers: Headers, sending: _Sending) -> dict[str, Any]:
    """PUT a file from a thread.

    If the site refuses the file and closes the connection early, an async client would lose the response.
    """
    with _in_words(url), disk_errors(path), path.open("rb") as file:
        size = path.stat().st_size
        about = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        content = sending.counted(file, size)
        request = httpx2.Request("PUT", url, headers={**FIXED_HEADERS, **about, **headers}, content=content)
        settings = _settings(request.url)
        with _proxy_in_words(request.url):
            client = httpx2.Client(**settings)
        with client, closing(client.send(request, stream=True)) as response:
            if response.is_success:
                return _answer(url, _start_of(response, JSON_LIMIT))
            said = b""
            with suppress(*LOST):  # an error with a truncated body is still the site's error
                said = _start_of(response, ERROR_LIMIT)
            raise _refusal(url, response, said)


def _start_of(response: httpx2.Response, limit: int) -> bytes:
    return b"".join(islice(response.iter_raw(BLOCK), 1 + limit // BLOCK))


def _answer(url: str, said: bytes) -> dict[str, Any]:
    if len(said) > JSON_LIMIT:
        raise Problem.of("E110", url=url, reason=f"more than {JSON_LIMIT} bytes")
    answer = _object(said or b"{}")
    if answer is None:
        raise Problem.of("E110", url=url, reason="not a JSON object")
    return answer


def _refusal(url: str, response: httpx2.Response, said: bytes) -> Problem:
    match _object(said):
        case {"code": str(code), "text": str(text)}:
            return Answered(Fault(code, text), max(_whole_number(response.headers.get("Retry-After", "")), 0.0))
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR and response.url.origin != httpx2.URL(url).origin:
        return Problem.of("E104", url=url, reason=f"its object store answered HTTP {response.status_code}")
    if response.status_code == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return Problem.of("E104", url=url, reason=_of_proxy(str(response.status_code)))
    return Problem.of("E110", url=url, reason=f"HTTP {response.status_code}")


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _whole_number(said: str) -> int:
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else -1


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token is not None else {}


def _settings(url: httpx2.URL) -> dict[str, Any]:
    """Return the HTTP client's settings for one request. May query the resolver.

    Raises Problem E104 if the URL is invalid, E105 if it is plaintext outside the local network, and E450 if a
    certificate file cannot be read.
    """
    check_encrypted(str(url), secure="https", plain="http")
    return {"verify": _trusted(), "proxy": _proxy(url), "trust_env": False, "timeout": TIMEOUT_S}


def _trusted() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates and those of `SSL_CERT_FILE` or `REQUESTS_CA_BUNDLE`.

    Raises Problem E450 if the file named by `REQUESTS_CA_BUNDLE` cannot be read.
    """
    context = ssl.create_default_context()  # OpenSSL itself reads SSL_CERT_FILE and SSL_CERT_DIR
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        try:
            context.load_verify_locations(bundle)
        except OSError as error:
            raise Problem.of("E450", path=bundle, reason=error.strerror or error) from error
    return context


def _proxy(url: httpx2.URL) -> str | None:
    """Return the system's proxy for this address, or None if the address needs none.

    httpx2's own lookup fails if a SOCKS proxy is set for other addresses. It also ignores the proxy exceptions set in
    Windows and macOS.
    """
    if is_loopback(url.host) or proxy_bypass(url.netloc.decode()):
        return None
    address = getproxies().get(url.scheme)
    return f"http://{address}" if address and "://" not in address else address


@contextmanager
def _proxy_in_words(url: httpx2.URL) -> Iterator[None]:
    """Turn a missing SOCKS package (ImportError) or an invalid proxy (ValueError) into Problem E104."""
    try:
        yield
    except ImportError as error:
        reason = f"its SOCKS proxy needs a package: pip install {error.name or 'socksio'}"
        raise Problem.of("E104", url=url, reason=reason) from error
    except ValueError as error:
        raise Problem.of("E104", url=url, reason=f"the proxy's address is not valid: {error}") from error


@contextmanager
def _in_words(url: str) -> Iterator[None]:
    try:
        yield
    except (*LOST, httpx2.InvalidURL) as error:
        raise Problem.of("E104", url=url, reason=_reason(error)) from error


def _reason(error: BaseException) -> BaseException | str:
    """Return the reason to show for an error.

    For network errors this is their root cause, because the errors themselves are too vague.
    """
    if isinstance(error, httpx2.TimeoutException):
        return f"no answer within {TIMEOUT_S:g} seconds"
    if isinstance(error, httpx2.ProxyError):
        return _of_proxy(str(error))
    if isinstance(error, httpx2.NetworkError):
        while (deeper := error.__cause__ or error.__context__) is not None:
            error = deeper
    return error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error


def _of_proxy(said: str) -> str:
    if said.startswith(str(int(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED))):
        return "the proxy wants a log-in: write it into the proxy's address, as in http://NAME:PASSWORD@HOST:PORT"
    return f"the proxy answered {said or 'with an error'}"
