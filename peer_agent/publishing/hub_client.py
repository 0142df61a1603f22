"""A client for the Hugging Face Hub with our settings, which retries before it raises numbered errors. Only child
processes use it to call the Hub. Other processes use only its functions about names and addresses.
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

PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # pauses before retries; callers that retry a whole task wait longer
LONGEST_PAUSE_S = 330.0  # the longest pause that a Hub may request; the Hub counts requests over five minutes
SILENT_S = 300.0  # the Hub counts as unreachable if no byte arrives for this long
AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class PatientClient(httpx2.Client):
    """An HTTP client that retries with backoff while the Hub is busy, broken or unreachable. It may send a request
    twice, so callers must tolerate a response such as "already exists".
    """

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. Retry it unless its body is read from a file, since the Hub's own client retries those."""
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
    """Return an HTTP client with a timeout for huggingface_hub, whose own client would wait forever."""
    return PatientClient(follow_redirects=True, timeout=SILENT_S)


def _asked_for_s(response: httpx2.Response) -> float:
    """Return how many seconds the Hub asks to wait, in its header `RateLimit` or `Retry-After`, or 0."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined] # documented as public

    limits = parse_ratelimit_headers(response.headers)
    said = response.headers.get("Retry-After", "")
    asked = float(said) if said.isascii() and said.isdigit() else 0.0
    return min(max(asked, limits.reset_in_seconds if limits is not None else 0.0), LONGEST_PAUSE_S)


Kind = Literal["dataset", "model", "tokenizer"]  # what to look for on the Hub; tokenizers are parts of models

HUB = "https://huggingface.co"
PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
NAME = re.compile(f"{PART}/{PART}")


def check_name(repository: str) -> None:
    """Raise Problem E348 unless `repository` is a valid Hub name of the form NAMESPACE/NAME."""
    is_name = NAME.fullmatch(repository) and not re.search(r"--|\.\.|\.git\Z", repository)
    if not is_name:
        raise Problem.of("E348", repository=repository)


def hub_endpoint() -> str:
    """Return the Hub's address from HF_ENDPOINT, as the Hub's own programs do. The default is huggingface.co."""
    return os.environ.get("HF_ENDPOINT", HUB).rstrip("/")


WRITING = {"write", "admin"}  # roles that let a classic token write
WRITE_SCOPE = "repo.write"  # permission that lets a fine-grained token write
TRIES, PAUSE_S = 5, 1.0  # the Hub counts as unreachable after this many tries without a new byte of a file
AWAY = {408}  # statuses of an unreachable Hub, besides 500 and above
MOVED = {301, 302, 307, 308}
SETTINGS = {
    "HF_HUB_DISABLE_XET": "1",  # use a plain upload, which every Hub-compatible server supports
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
}
os.environ.update(SETTINGS)  # huggingface_hub reads these variables when a function here first imports it


class Account(Struct, frozen=True, kw_only=True):
    """A token's owner. `namespaces`: where the token may write; empty for a read-only token."""

    name: str
    namespaces: tuple[str, ...]


def check_token(token: str, endpoint: str) -> Account:
    """Return a token's account. Raises Problem E343 if the Hub does not know the token, or the token cannot write.
    Raises Problem E346 if the Hub cannot be reached, or E347 if its response is unexpected.
    """
    api = api_of(token, endpoint)
    with in_words(endpoint, "the Hub"):
        said = api.whoami()
    namespaces = _writable(said)
    if not namespaces:
        raise Problem.of("E343", reason="it can read but not write", endpoint=endpoint)
    return Account(name=str(said["name"]), namespaces=tuple(namespaces))


def api_of(token: str, endpoint: str) -> "HfApi":
    """Return a Hub client that uses this token, or no token if it is empty."""
    from huggingface_hub import HfApi

    _be_patient()
    return HfApi(endpoint=endpoint, token=token or False, library_name="manyhands")


@functools.cache
def _be_patient() -> None:
    from huggingface_hub import set_client_factory

    set_client_factory(patient_client)


def _writable(said: Mapping[str, Any]) -> list[str]:
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
    """Return the Hub's repository type for this kind."""
    return "dataset" if kind == "dataset" else "model"


def held_files(
    api: "HfApi", repository: str, revision: str | None, *, kind: Kind = "model", most: int | None = None
) -> dict[str, Any]:
    """Return a revision's files by name. `most`: the maximum number of list entries to read."""
    tree = api.list_repo_tree(repository, recursive=True, revision=revision, repo_type=type_of(kind))
    return {file.path: file for file in islice(tree, most) if hasattr(file, "blob_id")}


@contextmanager
def opened(api: "HfApi", repository: str, name: str, *, kind: Kind, commit: str, bytes_: str = "") -> Iterator[Any]:
    """Open a Hub file, or a byte range of it such as `0-99`. Raises the Hub client's errors."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined] # documented as public
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
    """Return True if a local file equals a Hub file, comparing SHA-256 for large files and git hashes for others."""
    if path is None or path.stat().st_size != file.size:
        return False
    with path.open("rb") as content:
        if file.lfs is not None:
            return bool(hashlib.file_digest(content, "sha256").hexdigest() == file.lfs.sha256)
        blob = hashlib.sha1(b"blob %d\0" % file.size + content.read(), usedforsecurity=False)
        return bool(blob.hexdigest() == file.blob_id)


@contextmanager
def in_words(endpoint: str, repository: str, *, reading: Kind | None = None) -> Iterator[None]:
    """Convert the Hub client's errors to numbered errors. `reading`: the kind of repository being read, if any."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError) as error:
        raise _problem(_cause(error, HfHubHTTPError), endpoint, repository, reading) from error


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException:
    """Return the Hub's own error if the client has wrapped it in another one, otherwise `error` itself."""
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
    if response is not None and status in MOVED:
        return Problem.of("E452", repository=repository, to=response.headers.get("Location", "another address"))
    if response is not None and response.headers.get("X-Error-Code") == "GatedRepo":
        return Problem.of("E453", repository=repository, endpoint=endpoint)
    if status == 403 and "storage" in reason.lower():
        return Problem.of("E451", repository=repository, reason=reason, endpoint=endpoint)
    if response is not None and status == 429:
        wait_s = _asked_for_s(response)
        limit = f"it limits requests, and asks to wait {wait_s:.0f} seconds" if wait_s else "it limits requests"
        return Problem.of("E346", endpoint=endpoint, reason=limit)
    if reading is not None and status in (401, 403, 404):
        return Problem.of("E397", kind=reading, repository=repository, reason=reason, endpoint=endpoint)
    if status == 401 or (status == 403 and "token" in reason.lower()):
        return Problem.of("E343", reason=reason, endpoint=endpoint)
    if status in (403, 404):
        return Problem.of("E344", repository=repository, reason=reason, endpoint=endpoint)
    if status >= 500 or status in AWAY:
        return Problem.of("E346", endpoint=endpoint, reason=reason)
    return Problem.of("E347", reason=reason)
