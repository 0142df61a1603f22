"""A folder of files becomes one commit on the Hugging Face Hub, through its own client.

Sending it again sends nothing twice: what is there already, to the byte, is left alone. Nothing that somebody else
put there is touched without leave. A Hub that fails for a moment is asked again (`patience`), and a commit whose answer
was lost is found. Runs in a process of its own, which alone holds the token.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.repository import check_name

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

WRITING = {"write", "admin"}  # roles of a classic token
WRITE_SCOPE = "repo.write"  # of a fine-grained one
MAIN = "main"
TRIES = 4  # with a parent that somebody else made stale
AWAY = {408, 429}  # statuses that say so, beside those of 500 and above
UNCOUNTED = {".gitattributes"}  # the Hub makes it
NAMES_SHOWN = 3
SETTINGS = {
    "HF_HUB_DISABLE_XET": "1",  # one plain upload that every Hub-compatible server speaks
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
}
os.environ.update(SETTINGS)  # read when the client is imported, which each function here leaves until it runs


class Account(Struct, frozen=True, kw_only=True):
    """Whose token it is, and the namespaces it may write to; none where it only reads."""

    name: str
    namespaces: tuple[str, ...]


class Destination(Struct, frozen=True, kw_only=True):
    """Where to: `NAMESPACE/NAME` at a Hub, and a branch. `known`: the commit that we made there last, empty if none."""

    repository: str
    endpoint: str
    branch: str = MAIN  # begins as `main` is, where it is another
    private: bool = False
    replace: bool = False
    known: str = ""

    @property
    def url(self) -> str:
        """Where people find it."""
        where = f"{self.endpoint}/{self.repository}"
        return where if self.branch == MAIN else f"{where}/tree/{self.branch}"


class Pushed(Struct, frozen=True, kw_only=True):
    """The commit that holds the files, and where people find it."""

    repository: str
    commit: str
    url: str


class Progress(Struct, frozen=True, kw_only=True):
    """How far it is, in words and bytes."""

    stage: str
    done: int = 0
    total: int = 0


Tell = Callable[[Progress], None]


def check_token(token: str, endpoint: str) -> Account:
    """Whose it is. Raises Problem E343 where the Hub does not know it or it may not write, E346, E347."""
    api = _api(token, endpoint)
    with _in_words(endpoint, "the Hub"):
        said = api.whoami()
    namespaces = _writable(said)
    if not namespaces:
        raise Problem.of("E343", reason="it may read, not write", endpoint=endpoint)
    return Account(name=str(said["name"]), namespaces=tuple(namespaces))


def push(folder: Path, names: tuple[str, ...], to: Destination, token: str, *, message: str, tell: Tell) -> Pushed:
    """Put these files of a folder there, in one commit. `message`: whose and of which step, parted by a comma.

    Raises Problem E343 to E350; after any of them it may simply be done again.
    """
    check_name(to.repository)
    tell(Progress(stage="asking the Hub"))
    check_token(token, to.endpoint)
    api = _api(token, to.endpoint)
    ours = {name: folder / name for name in names}
    with _in_words(to.endpoint, to.repository):
        _make(api, to)
        commit = _commit(api, ours, to, message, tell)
        tell(Progress(stage="comparing what the Hub holds"))
        _compare(api, ours, to, commit)
    return Pushed(repository=to.repository, commit=commit, url=to.url)


def teller(path: Path | None) -> Tell:
    """Writes each step of the way into a file, which another process reads; nowhere without one."""

    def tell(progress: Progress) -> None:
        if path is not None:
            draft = path.with_suffix(".new")
            draft.write_bytes(msgspec.json.encode(progress))
            draft.replace(path)

    return tell


def _api(token: str, endpoint: str) -> "HfApi":
    from huggingface_hub import HfApi

    _be_patient()
    return HfApi(endpoint=endpoint, token=token, library_name="manyhands")


@functools.cache
def _be_patient() -> None:
    """From now on, in this process."""
    from huggingface_hub import set_client_factory

    from peer_agent.publishing.patience import patient_client

    set_client_factory(patient_client)


def _writable(said: Mapping[str, Any]) -> list[str]:
    """Namespaces, by what `whoami` says of the token."""
    access = (said.get("auth") or {}).get("accessToken") or {}
    everywhere = [said["name"], *(org["name"] for org in said.get("orgs") or [])]
    if access.get("role") in WRITING:
        return everywhere
    fine = access.get("fineGrained") or {}
    if WRITE_SCOPE in (fine.get("global") or []):
        return everywhere
    scoped = (part for part in fine.get("scoped") or [] if WRITE_SCOPE in part.get("permissions", ()))
    return [str(part["entity"]["name"]) for part in scoped]


def _make(api: "HfApi", to: Destination) -> None:
    """The repository and the branch; those that exist stay as they are."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(to.repository, private=to.private, exist_ok=False)
    except HfHubHTTPError as error:
        if error.response.status_code != 409:
            raise
    if to.branch != MAIN:
        api.create_branch(to.repository, branch=to.branch, exist_ok=True)


def _commit(api: "HfApi", ours: Mapping[str, Path], to: Destination, message: str, tell: Tell) -> str:
    """On top of what is there, read anew each time somebody else was faster. Raises Problem E345, E349."""
    from huggingface_hub.errors import HfHubHTTPError

    additions: list[CommitOperationAdd] = []
    for _ in range(TRIES):
        parent = api.model_info(to.repository, revision=to.branch).sha
        held = _held(api, to.repository, parent)
        if _all_same(ours, held):
            return parent or ""
        if not _may_change(api, to, parent, message):
            _require_same(ours, held, to)
        additions = additions or _upload(api, ours, to, tell)
        try:
            made = api.create_commit(
                to.repository, additions, commit_message=message, parent_commit=parent, revision=to.branch
            )
        except HfHubHTTPError as error:
            if error.response.status_code != 412:
                raise
        else:
            return str(made.oid)
    raise Problem.of("E349", repository=to.repository)


def _may_change(api: "HfApi", to: Destination, parent: str | None, message: str) -> bool:
    """Whether somebody said so, or the last commit is our own: the known one, or one of which we never heard again."""
    if to.replace or (to.known and to.known == parent):
        return True
    whose = message.rpartition(",")[0] + ","
    commits = api.list_repo_commits(to.repository, revision=to.branch)
    return bool(commits) and commits[0].title.startswith(whose)


def _require_same(ours: Mapping[str, Path], held: Mapping[str, Any], to: Destination) -> None:
    """Raises Problem E345 where there is something else than what we would put there."""
    others = [name for name, file in held.items() if name not in UNCOUNTED and not _same(ours.get(name), file)]
    if others:
        shown = ", ".join(sorted(others)[:NAMES_SHOWN]) + (" …" if len(others) > NAMES_SHOWN else "")
        raise Problem.of("E345", repository=to.repository, names=shown)


def _upload(api: "HfApi", ours: Mapping[str, Path], to: Destination, tell: Tell) -> "list[CommitOperationAdd]":
    """Large files go one after another before the commit; small ones go with it."""
    from huggingface_hub import CommitOperationAdd

    total, done = sum(path.stat().st_size for path in ours.values()), 0
    additions = []
    for name, path in sorted(ours.items()):
        tell(Progress(stage=f"sending {name}", done=done, total=total))
        addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
        api.preupload_lfs_files(to.repository, additions=[addition])
        additions.append(addition)
        done += path.stat().st_size
    tell(Progress(stage="committing", done=done, total=total))
    return additions


def _compare(api: "HfApi", ours: Mapping[str, Path], to: Destination, commit: str) -> None:
    """Raises Problem E350 where the Hub holds other bytes."""
    held = _held(api, to.repository, commit)
    wrong = [name for name, path in ours.items() if name not in held or not _same(path, held[name])]
    if wrong:
        raise Problem.of("E350", names=", ".join(wrong))


def _held(api: "HfApi", repository: str, revision: str | None) -> dict[str, Any]:
    """The files of a revision by name."""
    tree = api.list_repo_tree(repository, recursive=True, revision=revision)
    return {file.path: file for file in tree if hasattr(file, "blob_id")}


def _all_same(ours: Mapping[str, Path], held: Mapping[str, Any]) -> bool:
    return all(name in held and _same(path, held[name]) for name, path in ours.items())


def _same(path: Path | None, file: Any) -> bool:
    """Whether a file of the Hub has these bytes: by sha256 where it is a large one, else as git names it."""
    if path is None or path.stat().st_size != file.size:
        return False
    with path.open("rb") as content:
        if file.lfs is not None:
            return bool(hashlib.file_digest(content, "sha256").hexdigest() == file.lfs.sha256)
        blob = hashlib.sha1(b"blob %d\0" % file.size + content.read(), usedforsecurity=False)
        return bool(blob.hexdigest() == file.blob_id)


@contextmanager
def _in_words(endpoint: str, repository: str) -> Iterator[None]:
    """What the client raises, as numbered errors."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError) as error:
        raise _problem(_cause(error, HfHubHTTPError), endpoint, repository) from error


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException:
    """The Hub's own answer, where the client has wrapped it."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__
    return found or error


def _problem(error: BaseException, endpoint: str, repository: str) -> Problem:
    import httpx2

    if isinstance(error, httpx2.TransportError):
        return Problem.of("E346", endpoint=endpoint, reason=type(error).__name__)
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    reason = (getattr(error, "server_message", None) or (f"HTTP {status}" if status else str(error))).splitlines()[0]
    if status == 401:
        return Problem.of("E343", reason=reason, endpoint=endpoint)
    if status in (403, 404):
        return Problem.of("E344", repository=repository, reason=reason, endpoint=endpoint)
    if status >= 500 or status in AWAY:
        return Problem.of("E346", endpoint=endpoint, reason=reason)
    return Problem.of("E347", reason=reason)
