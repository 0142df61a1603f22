"""Push a folder of files to the Hugging Face Hub as one commit, using the Hub's own client. A repeated push skips
identical files and recognizes a commit whose response was lost. Other people's files are not replaced without
permission. The push runs in its own process, and only that process has the token.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub_client import api_of, check_name, check_token, held_files, in_words, is_same

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

MAIN = "main"
TRIES = 4  # tries if other commits make our parent commit stale
UNCOUNTED = {".gitattributes"}  # files created by the Hub itself
NAMES_SHOWN = 3


class Destination(Struct, frozen=True, kw_only=True):
    """A repository `NAMESPACE/NAME` on a Hub, and a branch. `known`: our last commit on the branch, or "". `private`:
    make a new repository private. `replace`: True if the push may replace other people's files.
    """

    repository: str
    endpoint: str
    branch: str = MAIN  # a new branch starts as a copy of `main`
    private: bool = False
    replace: bool = False
    known: str = ""

    @property
    def url(self) -> str:
        where = f"{self.endpoint}/{self.repository}"
        return where if self.branch == MAIN else f"{where}/tree/{self.branch}"


class Pushed(Struct, frozen=True, kw_only=True):
    """The commit on the Hub that contains the files. `url` is an address for people."""

    repository: str
    commit: str
    url: str


class Progress(Struct, frozen=True, kw_only=True):
    """A push's progress: its stage in words, the number of bytes done, and the total."""

    stage: str
    done: int = 0
    total: int = 0


Tell = Callable[[Progress], None]


def push(folder: Path, names: tuple[str, ...], to: Destination, token: str, *, message: str, tell: Tell) -> Pushed:
    """Push files as one commit, then compare the Hub's copies with them. A failed push may be repeated. `message`: a
    description of the run, a comma, and the step. Raises Problem E343 to E350 or E451 to E453.
    """
    check_name(to.repository)
    tell(Progress(stage="asking the Hub"))
    check_token(token, to.endpoint)
    api = api_of(token, to.endpoint)
    ours = {name: folder / name for name in names}
    with in_words(to.endpoint, to.repository):
        _make(api, to)
        commit = _commit(api, ours, to, message, tell)
        tell(Progress(stage="comparing what the Hub holds"))
        _compare(api, ours, to, commit)
    return Pushed(repository=to.repository, commit=commit, url=to.url)


def teller(path: Path | None) -> Tell:
    """Return a function that writes progress to a file for another process, or does nothing if `path` is None."""

    def tell(progress: Progress) -> None:
        if path is not None:
            draft = path.with_suffix(".new")
            draft.write_bytes(msgspec.json.encode(progress))
            draft.replace(path)

    return tell


def _make(api: "HfApi", to: Destination) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(to.repository, private=to.private, exist_ok=False)
    except HfHubHTTPError as error:
        if error.response.status_code != 409:
            raise
    if to.branch != MAIN:
        api.create_branch(to.repository, branch=to.branch, exist_ok=True)


def _commit(api: "HfApi", ours: Mapping[str, Path], to: Destination, message: str, tell: Tell) -> str:
    """Commit the files to the branch and return the commit. Retry if another commit gets in first. Raises Problem E345
    if the push would replace other people's files, or E349 if other commits get in first each time.
    """
    from huggingface_hub.errors import HfHubHTTPError

    additions: list[CommitOperationAdd] = []
    for _ in range(TRIES):
        parent = api.model_info(to.repository, revision=to.branch).sha
        held = held_files(api, to.repository, parent)
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
    """Return True if the user lets the push replace the branch's files, or if the last commit is ours. If the response
    to our commit was lost, we recognize that commit by its title.
    """
    if to.replace or (to.known and to.known == parent):
        return True
    whose = message.rpartition(",")[0] + ","
    commits = api.list_repo_commits(to.repository, revision=to.branch)
    return bool(commits) and commits[0].title.startswith(whose)


def _require_same(ours: Mapping[str, Path], held: Mapping[str, Any], to: Destination) -> None:
    """Raise Problem E345 if a file in the branch is missing from this push or differs from it."""
    others = [name for name, file in held.items() if name not in UNCOUNTED and not is_same(ours.get(name), file)]
    if others:
        shown = ", ".join(sorted(others)[:NAMES_SHOWN]) + (" …" if len(others) > NAMES_SHOWN else "")
        raise Problem.of("E345", repository=to.repository, names=shown)


def _upload(api: "HfApi", ours: Mapping[str, Path], to: Destination, tell: Tell) -> "list[CommitOperationAdd]":
    """Upload large files one by one before the commit. Small files are sent in the commit itself."""
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
    """Raise Problem E350 if the Hub's files differ from the local files."""
    held = held_files(api, to.repository, commit)
    wrong = [name for name, path in ours.items() if name not in held or not is_same(path, held[name])]
    if wrong:
        raise Problem.of("E350", names=", ".join(wrong))


def _all_same(ours: Mapping[str, Path], held: Mapping[str, Any]) -> bool:
    return all(name in held and is_same(path, held[name]) for name, path in ours.items())
