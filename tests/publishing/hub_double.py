"""A double of the Hugging Face Hub in a thread. It speaks the protocol of huggingface_hub 2.4.0 and enforces
permissions strictly.

Status 401: no token. 403: no write scope, or another account's namespace. 409: the repository already exists. 412: the
parent commit is stale. 400: an upload's size or sha256 is not as announced. The double serves what it has stored. On
request it fails a fraction of all calls, before or after doing the work.
"""

import base64
import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

NAME = r"[\w.-]+/[\w.-]+"
REPOSITORY = rf"(?P<repository>{NAME})"
DATASET = rf"(?P<repository>datasets/{NAME})"
REVISION = r"(?P<revision>[\w.%-]+)"


@dataclass
class Stored:
    content: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def blob(self) -> str:
        """The git blob hash of the file, or of the pointer that stands for a large file."""
        content = self.content
        if self.is_large:
            content = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(content)}\n".encode()
            )
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """A repository's commits in order, each with all its files. Each branch in `branches` lists all its commits,
    including those shared with main.
    """

    private: bool = False
    gated: bool = False  # the account has not accepted the owner's terms
    licence: str | list[str] = ""  # as its model card says
    commits: list[tuple[str, dict[str, Stored]]] = field(default_factory=list)
    branches: dict[str, list[tuple[str, dict[str, Stored]]]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)  # by commit

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    def line(self, branch: str) -> list[tuple[str, dict[str, Stored]]] | None:
        return self.commits if branch in ("main", "HEAD") else self.branches.get(branch)

    def commit(self, changes: dict[str, Stored | None], title: str = "", branch: str = "main") -> str:
        """Add a commit and return its id. A file changed to None is deleted."""
        commits = self.line(branch)
        assert commits is not None
        files = dict(commits[-1][1]) if commits else {}
        for name, stored in changes.items():
            if stored is None:
                files.pop(name, None)
            else:
                files[name] = stored
        blobs = sorted((name, stored.blob) for name, stored in files.items())
        oid = hashlib.sha1(json.dumps([branch, len(commits), title, *blobs]).encode()).hexdigest()
        commits.append((oid, files))
        self.titles[oid] = title
        return oid

    def until(self, revision: str) -> list[tuple[str, dict[str, Stored]]]:
        """Return the commits up to a revision, which is a branch or a commit. The list is empty if the revision does
        not exist.
        """
        if (line := self.line(revision)) is not None:
            return line
        for commits in (self.commits, *self.branches.values()):
            for place, (oid, _) in enumerate(commits):
                if oid == revision:
                    return commits[: place + 1]
        return []

    def files(self, revision: str) -> dict[str, Stored] | None:
        commits = self.until(revision)
        return commits[-1][1] if commits else None


class Hub:
    """The double's content, and the switches that make it misbehave."""

    def __init__(self, *, large_from: int = 4096) -> None:
        self.tokens: dict[str, dict[str, Any]] = {}
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}  # uploaded large files by sha256, perhaps not yet in a commit
        self.large_from = large_from
        self.url = ""
        self.seen: list[tuple[str, str]] = []  # (method, path) of each call
        self.authorizations: set[str] = set()
        self.interlopers = 0  # number of times that another account commits first
        self.broken = 0  # number of commits answered with 500
        self.limited = 0  # number of calls answered with 429 and a wait of seven seconds
        self.damage_uploads = False
        self.cut_after = 0  # bytes of a file after which the connection is cut; 0 means never
        self.ignores_ranges = False
        self.sent = 0  # bytes of files sent so far
        self.damaged: dict[str, bytes] = {}  # content served instead of the listed files
        self.held = ""  # this repository's next large file is accepted without an answer
        self.is_holding = threading.Event()  # set once the double holds the answer back
        self.failing = 0.0  # share of all calls that fail
        self.chance = random.Random(0)  # chooses which calls fail
        self.most_in_a_row = 0  # most failures in a row for each address; 0 means no limit
        self.in_a_row: dict[tuple[str, str], int] = {}
        self.lock = threading.Lock()

    def account(self, name: str, token: str, *, role: str = "write", scopes: tuple[str, ...] = ()) -> str:
        access: dict[str, Any] = {"displayName": "test", "role": role}
        if role == "fineGrained":
            scoped = [{"entity": {"_id": "1", "type": "user", "name": name}, "permissions": list(scopes)}]
            access["fineGrained"] = {"canReadGatedRepos": False, "global": [], "scoped": scoped}
        self.tokens[token] = {
            "type": "user",
            "id": "1",
            "name": name,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": access},
        }
        return token

    def put(self, repository: str, **files: bytes) -> Repository:
        """Create a repository. Underscores in file names stand for dots."""
        return self.put_files(repository, {name.replace("_", "."): content for name, content in files.items()})

    def put_files(self, repository: str, files: dict[str, bytes], branch: str = "main") -> Repository:
        """Create a repository from full file names. The name of a dataset begins with `datasets/`. Files of 4,096
        bytes or more are large.
        """
        made = self.repositories.setdefault(repository, Repository())
        if branch != "main":
            made.branches.setdefault(branch, [])
        attributes = {".gitattributes": Stored(b"*.safetensors filter=lfs\n", is_large=False)}
        stored = {name: Stored(content, is_large=len(content) >= self.large_from) for name, content in files.items()}
        made.commit({**attributes, **stored}, branch=branch)
        return made

    def may_write(self, said: dict[str, Any], repository: str) -> bool:
        access = said["auth"]["accessToken"]
        scoped = access.get("fineGrained", {}).get("scoped", [])
        is_writing = access["role"] == "write" or any("repo.write" in part["permissions"] for part in scoped)
        return is_writing and repository.removeprefix("datasets/").split("/")[0] == said["name"]


class Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "", **more: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.more = status, message, code, more


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the acknowledgement of its headers
    hub: Hub
    is_mute = False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's own name)
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        self.body = self._read()
        path = self.path.split("?")[0]
        self.hub.seen.append((method, path))
        trouble = self._trouble(method, path)
        self.is_mute = trouble in ("after", "cut")
        try:
            if trouble not in ("before", "limited"):
                self._route(method, path)
        except Refused as refused:
            self._send_json({"error": refused.message, **refused.more}, refused.status, refused.code)
        self.is_mute = False
        if trouble == "cut":
            self.close_connection = True
        elif trouble == "limited":
            self._send(b"", 429, Retry_After="7")
        elif trouble:
            self._send_json({"error": "try again"}, 503 if trouble == "before" else 502)

    def _trouble(self, method: str, path: str) -> str:
        """Choose how this call fails, if at all: before the work, after it, or by dropping the connection after the
        work.
        """
        with self.hub.lock:
            if self.hub.limited:
                self.hub.limited -= 1
                return "limited"
            fails, before = self.hub.chance.random() < self.hub.failing, self.hub.in_a_row.get((method, path), 0)
            fails = fails and not 0 < self.hub.most_in_a_row <= before
            self.hub.in_a_row[method, path] = before + 1 if fails else 0
            return self.hub.chance.choice(("before", "after", "cut")) if fails else ""

    def _route(self, method: str, path: str) -> None:
        for verb, pattern, act in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and (verb == method or (verb == "GET" and method == "HEAD")):
                with self.hub.lock:
                    act(self, **match.groupdict())
                return
        raise Refused(404, "no such address")

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, content: bytes, status: int = 200, **headers: str) -> None:
        if self.is_mute:
            return
        self._head(status, len(content), headers)
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send_json(self, content: Any, status: int = 200, code: str = "") -> None:
        more = {"X_Error_Code": code} if code else {}
        message = {"X_Error_Message": content["error"]} if status >= 400 else {}
        self._send(json.dumps(content).encode(), status, Content_Type="application/json", **more, **message)

    # --- authentication ---

    def _account(self) -> dict[str, Any]:
        header = self.headers.get("Authorization", "")
        self.hub.authorizations.add(header)
        said = self.hub.tokens.get(header.removeprefix("Bearer "))
        if said is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        return said

    def _writer(self, repository: str) -> None:
        if not self.hub.may_write(self._account(), repository):
            raise Refused(403, "you have no right to write here")

    def _repository(self, repository: str) -> Repository:
        found = self.hub.repositories.get(repository)
        if found is None:
            raise Refused(404, "Repository not found", "RepoNotFound")
        if found.private and not self.hub.may_write(self._account(), repository):
            raise Refused(404, "Repository not found", "RepoNotFound")
        return found

    def _files(self, repository: Repository, revision: str) -> dict[str, Stored]:
        files = repository.files(unquote(revision))
        if files is None:
            raise Refused(404, "Revision not found", "RevisionNotFound")
        return files

    # --- endpoints ---

    def whoami(self) -> None:
        self._send_json(self._account())

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or self._account()['name']}/{asked['name']}"
        self._writer(name)
        if name in self.hub.repositories:
            raise Refused(409, "You already created this model repo", url=f"{self.hub.url}/{name}")
        self.hub.put(name).private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self._send_json({"url": f"{self.hub.url}/{name}"})

    def preupload(self, repository: str, revision: str) -> None:
        self._writer(repository)
        files = json.loads(self.body)["files"]
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= self.hub.large_from else "regular",
                "shouldIgnore": False,
            }
            for file in files
        ]
        self._send_json({"files": modes})

    def batch(self, repository: str) -> None:
        self._writer(repository)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.large or self.hub.held == repository:
                place = f"{self.hub.url}/lfs/{repository}/{wanted['oid']}/{wanted['size']}"
                answer["actions"] = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
            objects.append(answer)
        self._send_json({"transfer": "basic", "objects": objects})

    def upload(self, repository: str, oid: str, size: str) -> None:
        if self.hub.held == repository:
            self.hub.held, self.is_mute, self.close_connection = "", True, True
            self.hub.is_holding.set()
            return
        if len(self.body) != int(size) or hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "size or sha256 differ from what was said")
        self.hub.large[oid] = self.body[:-1] + b"\0" if self.hub.damage_uploads else self.body
        self._send(b"")

    def verify(self, repository: str, oid: str, size: str) -> None:
        self._writer(repository)
        if len(self.hub.large.get(oid, b"")) != int(size):
            raise Refused(404, "nothing of this digest was uploaded")
        self._send_json({})

    def commit(self, repository: str, revision: str) -> None:
        self._writer(repository)
        found = self._repository(repository)
        if self.hub.broken:
            self.hub.broken -= 1
            raise Refused(500, "Internal Error")
        if self.hub.interlopers:
            self.hub.interlopers -= 1
            found.commit({"notes.txt": Stored(f"{self.hub.interlopers}".encode(), is_large=False)})
        lines = [json.loads(line) for line in self.body.splitlines()]
        header, line = lines[0]["value"], found.line(revision)
        if line is None:
            raise Refused(404, "Revision not found", "RevisionNotFound")
        parent = header.get("parentCommit")
        if parent is not None and parent != line[-1][0]:
            raise Refused(412, "The parent commit is not the head: somebody else has committed")
        changes = dict(self._change(line["key"], line["value"]) for line in lines[1:])
        oid = found.commit(changes, header["summary"], revision)
        self._send_json({"commitOid": oid, "commitUrl": f"{self.hub.url}/{repository}/commit/{oid}", "success": True})

    def _change(self, key: str, value: dict[str, Any]) -> tuple[str, Stored | None]:
        match key:
            case "file":
                return value["path"], Stored(base64.b64decode(value["content"]), is_large=False)
            case "lfsFile":
                content = self.hub.large.get(value["oid"])
                if content is None or len(content) != value["size"]:
                    raise Refused(400, f"{value['path']} was not uploaded")
                return value["path"], Stored(content, is_large=True)
            case "deletedFile":
                return value["path"], None
        raise Refused(400, f"unknown operation {key}")

    def branch(self, repository: str, branch: str) -> None:
        self._writer(repository)
        found, start = self._repository(repository), json.loads(self.body).get("startingPoint", "main")
        if found.line(branch) is not None:
            raise Refused(409, "Reference already exists")
        found.branches[branch] = list(found.until(start))
        self._send_json({})

    def commits(self, repository: str, revision: str) -> None:
        found = self._repository(repository)
        self._send_json(
            [
                {
                    "id": oid,
                    "title": found.titles[oid],
                    "message": "",
                    "date": "2026-01-01T00:00:00.000Z",
                    "authors": [{"user": "somebody"}],
                }
                for oid, _ in reversed(found.until(revision))
            ]
        )

    def card(self) -> None:
        asked = json.loads(self.body)
        is_card = asked["content"].startswith("---\n")
        self._send_json({"errors": [] if is_card else [{"message": "no front matter"}], "warnings": []})

    def auth_check(self, repository: str) -> None:
        if self._repository(repository).gated:
            raise Refused(403, "Access to this repository is restricted", "GatedRepo")
        self._send(b"")

    def info(self, repository: str, revision: str = "main") -> None:
        found = self._repository(repository)
        siblings = [{"rfilename": name} for name in self._files(found, revision)]
        sha = found.until(unquote(revision))[-1][0]
        said = {"id": repository.removeprefix("datasets/"), "sha": sha, "private": found.private, "tags": []}
        card = {"license": found.licence} if found.licence else None
        self._send_json({**said, "siblings": siblings, "gated": "manual" if found.gated else False, "cardData": card})

    def tree(self, repository: str, revision: str) -> None:
        files = self._files(self._repository(repository), revision)
        entries: list[dict[str, Any]] = []
        for name, stored in files.items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(stored.content), "oid": stored.blob}
            if stored.is_large:
                claimed = next((oid for oid, held in self.hub.large.items() if held is stored.content), stored.sha256)
                held = stored.sha256 if self.hub.damage_uploads else claimed
                entry["lfs"] = {"oid": held, "size": len(stored.content), "pointerSize": 134}
            entries.append(entry)
        self._send_json(entries)

    def resolve(self, repository: str, revision: str, name: str) -> None:
        found, name = self._repository(repository), unquote(name)
        files = self._files(found, revision)
        if name not in files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        if found.gated:
            raise Refused(403, "Access to this repository is restricted", "GatedRepo")
        stored = files[name]
        etag = stored.sha256 if stored.is_large else stored.blob
        content = self.hub.damaged.get(name, stored.content)
        told = {"X_Repo_Commit": found.until(revision)[-1][0], "ETag": f'"{etag}"', "Accept_Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None or self.hub.ignores_ranges:
            self._send_some(content, 200, told)
        else:
            begin, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            if begin > last:
                raise Refused(416, "no such range")
            told["Content_Range"] = f"bytes {begin}-{last}/{len(content)}"
            self._send_some(content[begin : last + 1], 206, told)

    def _send_some(self, content: bytes, status: int, told: dict[str, str]) -> None:
        """Send the whole content, or the part before the connection is dropped."""
        self.hub.sent += len(content)
        if not 0 < self.hub.cut_after < len(content) or self.is_mute:
            self._send(content, status, **told)
            return
        self._head(status, len(content), told)
        self.wfile.write(content[: self.hub.cut_after])
        self.close_connection = True


ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.card),
    ("POST", rf"/api/models/{REPOSITORY}/preupload/(?P<revision>[\w.-]+)", Handler.preupload),
    ("POST", rf"/api/models/{REPOSITORY}/commit/(?P<revision>[\w.-]+)", Handler.commit),
    ("POST", rf"/api/models/{REPOSITORY}/branch/(?P<branch>[\w.-]+)", Handler.branch),
    ("GET", rf"/api/models/{REPOSITORY}/commits/(?P<revision>[\w.-]+)", Handler.commits),
    ("GET", rf"/api/models/{REPOSITORY}/revision/(?P<revision>[\w.-]+)", Handler.info),
    ("GET", rf"/api/models/{REPOSITORY}/tree/(?P<revision>[\w.-]+)", Handler.tree),
    ("GET", rf"/api/models/{REPOSITORY}", Handler.info),
    ("GET", rf"/api/models/{REPOSITORY}/auth-check", Handler.auth_check),
    ("GET", rf"/api/{DATASET}/auth-check", Handler.auth_check),
    ("GET", rf"/api/{DATASET}/revision/{REVISION}", Handler.info),
    ("GET", rf"/api/{DATASET}/tree/{REVISION}", Handler.tree),
    ("GET", rf"/api/{DATASET}", Handler.info),
    ("POST", rf"/{REPOSITORY}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", rf"/lfs/{REPOSITORY}/(?P<oid>[0-9a-f]{{64}})/(?P<size>\d+)", Handler.upload),
    ("POST", rf"/lfs/{REPOSITORY}/(?P<oid>[0-9a-f]{{64}})/(?P<size>\d+)/verify", Handler.verify),
    ("GET", rf"/{DATASET}/resolve/(?P<revision>[\w.-]+)/(?P<name>.+)", Handler.resolve),
    ("GET", rf"/{REPOSITORY}/resolve/(?P<revision>[\w.-]+)/(?P<name>.+)", Handler.resolve),
]


@contextmanager
def running_hub(**options: Any) -> Iterator[Hub]:
    hub = Hub(**options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
