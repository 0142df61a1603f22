"""A folder of files becomes one commit on the Hugging Face Hub, through its own client.

Repeating it sends nothing twice: equal files stay. Files of others are not touched without permission. Requests are
retried while the Hub fails for a moment, and a commit whose answer was lost is found. Runs in its own process, which
alone holds the token.
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
TRIES = 4  # with a parent made stale by other commits
UNCOUNTED = {".gitattributes"}  # the Hub makes it
NAMES_SHOWN = 3


class Destination(Struct, frozen=True, kw_only=True):
    """A repository `NAMESPACE/NAME` at a Hub, and a branch. `known` is our last commit there, or ""."""

    repository: str
    endpoint: str
    branch: str = MAIN  # another branch starts as a copy of `main`
    private: bool = False
    replace: bool = False
    known: str = ""

    @property
    def url(self) -> str:
        where = f"{self.endpoint}/{self.repository}"
        return where if self.branch == MAIN else f"{where}/tree/{self.branch}"


class Pushed(Struct, frozen=True, kw_only=True):
    """The commit that holds the files, and its address for people."""

    repository: str
    commit: str
    url: str


class Progress(Struct, frozen=True, kw_only=True):
    """Progress in words and bytes."""

    stage: str
    done: int = 0
    total: int = 0


Tell = Callable[[Progress], None]


def push(folder: Path, names: tuple[str, ...], to: Destination, token: str, *, message: str, tell: Tell) -> Pushed:
    """Push files as one commit; repeatable. `message`: run, comma, step. Raises Problem E343 to E350."""
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
    """Return a function that writes progress to a file for another process, or nowhere."""

    def tell(progress: Progress) -> None:
        if path is not None:
            draft = path.with_suffix(".new")
            draft.write_bytes(msgspec.json.encode(progress))
            draft.replace(path)

    return tell


def _make(api: "HfApi", to: Destination) -> None:
    """Create the repository and the branch unless they exist."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(to.repository, private=to.private, exist_ok=False)
    except HfHubHTTPError as error:
        if error.response.status_code != 409:
            raise
    if to.branch != MAIN:
        api.create_branch(to.repository, branch=to.branch, exist_ok=True)


def _commit(api: "HfApi", ours: Mapping[str, Path], to: Destination, message: str, tell: Tell) -> str:
    """Commit on top of the branch, reading it again if another commit was faster. Raises Problem E345, E349."""
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
    """Return True if the push may replace files: allowed, or the last commit is ours, known or with a lost answer."""
    if to.replace or (to.known and to.known == parent):
        return True
    whose = message.rpartition(",")[0] + ","
    commits = api.list_repo_commits(to.repository, revision=to.branch)
    return bool(commits) and commits[0].title.startswith(whose)


def _require_same(ours: Mapping[str, Path], held: Mapping[str, Any], to: Destination) -> None:
    """Raise Problem E345 if the branch holds a file that we would not put there."""
    others = [name for name, file in held.items() if name not in UNCOUNTED and not is_same(ours.get(name), file)]
    if others:
        shown = ", ".join(sorted(others)[:NAMES_SHOWN]) + (" …" if len(others) > NAMES_SHOWN else "")
        raise Problem.of("E345", repository=to.repository, names=shown)


def _upload(api: "HfApi", ours: Mapping[str, Path], to: Destination, tell: Tell) -> "list[CommitOperationAdd]":
    """Upload large files one after another before the commit; small ones are part of it."""
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
    """Raise Problem E350 if the Hub holds other bytes."""
    held = held_files(api, to.repository, commit)
    wrong = [name for name, path in ours.items() if name not in held or not is_same(path, held[name])]
    if wrong:
        raise Problem.of("E350", names=", ".join(wrong))


def _all_same(ours: Mapping[str, Path], held: Mapping[str, Any]) -> bool:
    return all(name in held and is_same(path, held[name]) for name, path in ours.items())
