"""The Hub's own client with our settings and token, and its errors as numbered errors.

Requests are retried while the Hub fails for a moment. Only separate processes, which alone hold a token, import this.
"""

import functools
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx2
from msgspec import Struct

from peer_agent.protocol.errors import Problem

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# An HTTP client that retries with backoff while the Hub is busy, broken or unreachable.

PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # before each further try; callers that retry the whole wait longer
LONGEST_PAUSE_S = 60.0  # that a Hub may ask for
SILENT_S = 300.0  # without a byte, after which a Hub counts as unreachable
AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class PatientClient(httpx2.Client):
    """An HTTP client that may send a request twice. Callers must accept a second answer such as `exists already`."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send with retries. A body read from a file is sent once, because the Hub's own client rewinds it."""
        for usual_s in PAUSES_S if isinstance(request.stream, httpx2.ByteStream) else ():
            try:
                response = super().send(request, **options)
            except httpx2.TransportError:
                pause_s = usual_s
            else:
                if response.status_code not in AGAIN:
                    return response
                pause_s = max(usual_s, _asked_for_s(response))
                response.close()
            time.sleep(pause_s)
        return super().send(request, **options)


def patient_client() -> PatientClient:
    """Return a client for huggingface_hub, whose own waits for ever."""
    return PatientClient(follow_redirects=True, timeout=SILENT_S)


def _asked_for_s(response: httpx2.Response) -> float:
    """Return the seconds in `Retry-After`, or 0."""
    said = response.headers.get("Retry-After", "")
    return min(float(said), LONGEST_PAUSE_S) if said.isascii() and said.isdigit() else 0.0


Kind = Literal["dataset", "model", "tokenizer"]  # what to look for; a tokenizer is part of a model

HUB = "https://huggingface.co"
PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
NAME = re.compile(f"{PART}/{PART}")


def check_name(repository: str) -> None:
    """Raise Problem E348 if this is not NAMESPACE/NAME by the Hub's rules."""
    is_name = NAME.fullmatch(repository) and not re.search(r"--|\.\.|\.git\Z", repository)
    if not is_name:
        raise Problem.of("E348", repository=repository)


def hub_endpoint() -> str:
    """Return the Hub's address for this user: HF_ENDPOINT, as in the Hub's own programs."""
    return os.environ.get("HF_ENDPOINT", HUB).rstrip("/")


WRITING = {"write", "admin"}  # roles of a classic token
WRITE_SCOPE = "repo.write"  # of a fine-grained one
TRIES, PAUSE_S = 5, 1.0  # of a file without any new byte, after which a Hub counts as unreachable
AWAY = {408, 429}  # statuses that say so, besides 500 and above
SETTINGS = {
    "HF_HUB_DISABLE_XET": "1",  # one plain upload that every Hub-compatible server supports
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
}
os.environ.update(SETTINGS)  # read when the client is imported, which each function here does on its first call


class Account(Struct, frozen=True, kw_only=True):
    """The owner of a token, and the namespaces it may write to; none if it only reads."""

    name: str
    namespaces: tuple[str, ...]


def check_token(token: str, endpoint: str) -> Account:
    """Return a token's account. Raises Problem E343 (unknown, or it cannot write), E346, E347."""
    api = api_of(token, endpoint)
    with in_words(endpoint, "the Hub"):
        said = api.whoami()
    namespaces = _writable(said)
    if not namespaces:
        raise Problem.of("E343", reason="it can read but not write", endpoint=endpoint)
    return Account(name=str(said["name"]), namespaces=tuple(namespaces))


def api_of(token: str, endpoint: str) -> "HfApi":
    """Return a client with this token, or without one if it is empty."""
    from huggingface_hub import HfApi

    _be_patient()
    return HfApi(endpoint=endpoint, token=token or False, library_name="manyhands")


@functools.cache
def _be_patient() -> None:
    from huggingface_hub import set_client_factory

    set_client_factory(patient_client)


def _writable(said: Mapping[str, Any]) -> list[str]:
    """Return the namespaces that a token may write to, from the answer of `whoami`."""
    access = (said.get("auth") or {}).get("accessToken") or {}
    everywhere = [said["name"], *(org["name"] for org in said.get("orgs") or [])]
    if access.get("role") in WRITING:
        return everywhere
    fine = access.get("fineGrained") or {}
    if WRITE_SCOPE in (fine.get("global") or []):
        return everywhere
    scoped = (part for part in fine.get("scoped") or [] if WRITE_SCOPE in part.get("permissions", ()))
    return [str(part["entity"]["name"]) for part in scoped]


def type_of(kind: Kind) -> str:
    """Return the type of repository that holds this kind."""
    return "dataset" if kind == "dataset" else "model"


def held_files(
    api: "HfApi", repository: str, revision: str | None, *, kind: Kind = "model", most: int | None = None
) -> dict[str, Any]:
    """Return the files of a revision by name, from at most the first `most` entries."""
    tree = api.list_repo_tree(repository, recursive=True, revision=revision, repo_type=type_of(kind))
    return {file.path: file for file in islice(tree, most) if hasattr(file, "blob_id")}


@contextmanager
def opened(api: "HfApi", repository: str, name: str, *, kind: Kind, commit: str, bytes_: str = "") -> Iterator[Any]:
    """Open a file, or the range `bytes_` of it, such as `0-99`. Raises the client's errors."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined] # public by its documentation
        build_hf_headers,
        hf_raise_for_status,
    )

    address = hf_hub_url(repository, name, repo_type=type_of(kind), revision=commit, endpoint=api.endpoint)
    headers = {**build_hf_headers(token=api.token, library_name="manyhands"), "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={bytes_}"} if bytes_ else {}
    with get_session().stream("GET", address, headers=headers) as response:
        hf_raise_for_status(response)
        yield response


def is_same(path: Path | None, file: Any) -> bool:
    """Return True if a Hub file has these bytes: by sha256 if it is large, else by its git hash."""
    if path is None or path.stat().st_size != file.size:
        return False
    with path.open("rb") as content:
        if file.lfs is not None:
            return bool(hashlib.file_digest(content, "sha256").hexdigest() == file.lfs.sha256)
        blob = hashlib.sha1(b"blob %d\0" % file.size + content.read(), usedforsecurity=False)
        return bool(blob.hexdigest() == file.blob_id)


@contextmanager
def in_words(endpoint: str, repository: str, *, reading: Kind | None = None) -> Iterator[None]:
    """Convert the client's errors to numbered ones. `reading`: what is looked for, if nothing is written."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError) as error:
        raise _problem(_cause(error, HfHubHTTPError), endpoint, repository, reading) from error


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException:
    """Return the Hub's own answer, if the client has wrapped it."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__
    return found or error


def _problem(error: BaseException, endpoint: str, repository: str, reading: Kind | None) -> Problem:
    import httpx2

    if isinstance(error, httpx2.TransportError):
        return Problem.of("E346", endpoint=endpoint, reason=type(error).__name__)
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    reason = (getattr(error, "server_message", None) or (f"HTTP {status}" if status else str(error))).splitlines()[0]
    if reading is not None and status in (401, 403, 404):
        return Problem.of("E397", kind=reading, repository=repository, reason=reason, endpoint=endpoint)
    if status == 401:
        return Problem.of("E343", reason=reason, endpoint=endpoint)
    if status in (403, 404):
        return Problem.of("E344", repository=repository, reason=reason, endpoint=endpoint)
    if status >= 500 or status in AWAY:
        return Problem.of("E346", endpoint=endpoint, reason=reason)
    return Problem.of("E347", reason=reason)
