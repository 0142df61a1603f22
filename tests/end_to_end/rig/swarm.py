"""A real site, relays and agents, each in its own process. Tests use the site over HTTP, as people do."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, Self
from uuid import UUID

import psutil
import psycopg

from demo.processes import ROOT, bare_environment
from demo.recipes import LICENCE
from demo.visitor import TOKEN, Refused, Visitor
from peer_agent.site.login_token import VARIABLE
from tests.warm.client import Forked, Warm

MANYHANDS = str(Path(sys.executable).with_name("manyhands"))
PASSWORD = "correct horse battery staple"
DIGEST = re.compile(r"step (\d+): state ([0-9a-f]{16})")
SHOWN = re.compile(r"^ +([A-Z]{4}-[A-Z]{4})$", re.MULTILINE)  # the code that an agent shows when it asks for approval
OPERATOR = re.compile(r"/operator/[\w-]+/")
AWAY, BACK = "Site not reachable (E134)", "Solved: Site not reachable."
LOOK_S, ASK_S = 0.05, 0.2  # seconds between two checks on this machine; seconds between two requests to the site
GONE_S = 60.0
LAST = 3000  # characters of each log that are printed if a test fails
ENDLESS = 100_000  # steps
Uploaded = tuple[str, bytes]  # (file name, bytes)
SMALL = {
    "family": "gpt2",
    "layers": "1",
    "width": "32",
    "heads": "2",
    "context": "32",
    "vocab": "512",
    "target_batch": "48",
    "micro_batch": "2",
    "learning_rate": "0.01",
    "warmup_steps": "2",
    "optimizer": "lamb",
    "decay": "cosine",
    "final_ratio": "0.1",
    "beta1": "0.9",
    "beta2": "0.98",
    "epsilon": "1e-6",
    "weight_decay": "0.01",
    "clip_norm": "1.0",
    "snapshot_every": "10",
    "codec_up": "fp32",
    "codec_down": "fp32",
    "seed": "7",
}


class Swarm:
    """One site in one folder, with its relays and agents. When the block ends, all their processes are killed by
    process id.
    """

    warm: ClassVar[Warm | None] = None  # set in tests; benchmarks start the real program instead

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.data = folder, folder / "site"
        self.environment = dict(environment or {})
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self.url = self.slug = ""
        self._files: list[IO[bytes]] = []
        self.port = 0

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(self.logs())  # the cause of a failure may be only in the logs
        self.end(*self.processes)
        for file in self._files:
            file.close()

    def end(self, *names: str) -> None:
        """Kill the named processes and their children with SIGKILL. Other tests cover a graceful exit."""
        ended = [process for name in names if (process := self.processes[name]).poll() is None]
        children = [child for process in ended for child in psutil.Process(process.pid).children(recursive=True)]
        for process in ended:
            process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        for process in ended:
            process.wait()
        self.wait(lambda: not any(is_alive(child) for child in children), GONE_S, "children are gone")
        for name in names:
            if (stdin := self.processes[name].stdin) is not None:
                stdin.close()

    def end_agents(self) -> None:
        self.end(*(name for name in self.processes if name != "site"))

    # --- processes ----------------------------------------------------------------------------------------------

    def start(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        """Start any program. `name` also names the program's log."""
        file = self._log_of(name)
        self.processes[name] = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT
        )

    def _log_of(self, name: str) -> IO[bytes]:
        """Open the log for a program that is about to start, and close the input of an earlier program with this
        name."""
        file = (self.folder / f"{name}.log").open("ab")
        self._files.append(file)
        before = self.processes.get(name)
        if before is not None and before.stdin is not None:
            before.stdin.close()
        return file

    def start_site(
        self,
        name: str = "site",
        program: str = "",
        port: str = "",
        host: str = "127.0.0.1",
        options: str = "",
        **more: str,
    ) -> None:
        """Start the site. `program`: a test's own start script. `port`: the site's port behind a load balancer."""
        own = {**os.environ, **self.environment, "MANYHANDS_DATA": str(self.data)}
        if self.warm is not None and not self.environment:  # environment variables may decide what child processes load
            own["MANYHANDS_WARM"] = str(self.warm.socket)
            program = program or "tests/end_to_end/rig/warm_site.py"
        program = program or "manage.py"
        command = [sys.executable, str(ROOT / program), "serve", "--host", host, "--port", port or str(self.port)]
        command += [*options.split(), "--attached"]
        self.start(name, command, own | more, self.folder)
        self.wait(lambda: self._announced(name), 60, f"{name} starts")
        self.url = self._announced(name)
        if not port:
            self.port = int(self.url.rsplit(":", 1)[-1])
        self.wait(lambda: _answers(self.url), 30, f"{name} answers")

    def _announced(self, name: str) -> str:
        self._fail_if_gone(name)
        for path in self.folder.glob(f"{self.data.name}*/serve*.json"):  # hosts may have folders of their own
            with contextlib.suppress(FileNotFoundError):  # another site process may delete its file meanwhile
                said = json.loads(path.read_bytes())
                if said["pid"] == self.processes[name].pid:
                    return str(said["url"])
        return ""

    def _fail_if_gone(self, name: str) -> None:
        if self.processes[name].poll() is not None:
            raise AssertionError(f"{name} ended:\n{self.log(name)[-3000:]}")

    def start_agent(
        self,
        name: str,
        *,
        token: str = "",
        threads: int = 1,
        options: str = "",
        inside: Sequence[str] = (),
        **more: str,
    ) -> None:
        """Start an agent in an empty folder. Its environment holds only PATH, HOME, MANYHANDS_HOME and any variables
        the test adds.

        `inside`: a command that runs the agent elsewhere, for example in a network namespace.
        """
        home = self.folder / name
        home.mkdir(exist_ok=True)
        arguments = ["join", f"{self.url}/runs/{self.slug}/", "--threads", str(threads), "--attached", *options.split()]
        environment = bare_environment(home) | in_variable(token)
        if self.warm is not None and not inside and not more:  # environment variables may decide what the agent loads
            self.processes[name] = self.warm.start("peer_agent.cli", arguments, environment, home, self._log_of(name))
        else:
            self.start(name, [*inside, MANYHANDS, *arguments], environment | more, home)

    def start_relay(self, name: str, token: str = "", **more: str) -> None:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        command = [MANYHANDS, "relay", self.url, "--attached"]
        self.start(name, command, bare_environment(home) | in_variable(token) | more, home)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-LAST:]}" for name in self.processes)

    # --- people -------------------------------------------------------------------------------------------------

    def sign_up(self, name: str) -> Visitor:
        person = Visitor(self.url)
        person.submit("/signup/", {"username": name, "password": PASSWORD})
        return person

    def token_of(self, person: Visitor) -> str:
        found = TOKEN.search(person.submit("/machines/", {}))
        assert found is not None
        return found[0]

    def operator(self) -> Visitor:
        """Sign up the first operator with the one-time link that `serve` prints."""
        person = Visitor(self.url)
        person.submit(self.operator_link(), {"username": "root", "password": PASSWORD})
        return person

    def operator_link(self) -> str:
        return next(link[0] for name in self.processes if (link := OPERATOR.search(self.log(name))))

    def open_run(
        self,
        organizer: Visitor,
        data: str | Uploaded,
        model: Uploaded | None = None,
        /,
        *,
        trainers: int,
        steps: int,
        **recipe: str,
    ) -> None:
        """Create a run on a text or another file, and open it. `model`: the base model that the run adapts."""
        self.draft(organizer, data, trainers=trainers, steps=steps, **recipe)
        if model is not None:
            organizer.submit(f"/runs/{self.slug}/model/", {"licence": LICENCE, "may_share": "on"}, {"text": model})
        organizer.publish(self.slug)
        self.wait_for_state("open", 120)

    def open_endless_run(self, organizer: Visitor, text: str, *, trainers: int = 1, **recipe: str) -> None:
        """Open a run that lasts until the test ends. It takes few snapshots, because the site starts a process that
        loads torch for each one.
        """
        self.open_run(organizer, text, trainers=trainers, steps=ENDLESS, **{"snapshot_every": "1000", **recipe})

    def draft(self, organizer: Visitor, data: str | Uploaded, *, trainers: int, steps: int, **recipe: str) -> None:
        fields = {
            **SMALL,
            "title": "A run",
            "purpose": "",
            "visibility": "public",
            "licence": LICENCE,
            "may_share": "on",
            "target_steps": str(steps),
            "minimum_trainers": str(trainers),
            **recipe,
        }
        file = ("text.txt", data.encode()) if isinstance(data, str) else data
        organizer.submit("/runs/new/", fields, {"text": file})
        self.slug = organizer.slug

    # --- looking ------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return the run's facts from the API. While the site does not answer, the state is "away"."""
        try:
            return Visitor(self.url).read_json(f"runs/{self.slug}")
        except Refused:
            return {"state": "away", "step": -1, "loss": None}

    def items(self, what: str) -> list[dict[str, Any]]:
        return Visitor(self.url).read_items(f"runs/{self.slug}/{what}")

    def head(self) -> int:
        return int(self.facts()["step"])

    def wait_for_step(self, step: int, limit_s: float = 300) -> None:
        self._poll(lambda: self.head() >= step, limit_s, f"step {step}", ASK_S)

    def wait_finished(self, limit_s: float = 600) -> None:
        self.wait_for_state("finished", limit_s)

    def wait_for_state(self, state: str, limit_s: float) -> None:
        self._poll(lambda: self.facts()["state"] == state, limit_s, f"the run is {state}", ASK_S)

    def wait(self, done: Callable[[], object], limit_s: float, what: str) -> None:
        self._poll(done, limit_s, what, LOOK_S)

    def _poll(self, done: Callable[[], object], limit_s: float, what: str, every_s: float) -> None:
        until = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > until:
                raise AssertionError(f"not within {limit_s:g} s: {what}\n{self.facts()}")
            time.sleep(every_s)

    def digests(self, agent: str) -> dict[int, str]:
        return {int(step): digest for step, digest in DIGEST.findall(self.log(agent))}

    def made(self, agent: str) -> int:
        return max(self.digests(agent), default=0)

    def said(self, agent: str, words: str) -> int:
        return self.log(agent).count(words)

    def last_code(self, name: str) -> str:
        """Return the code of the last error that a program printed."""
        return str(re.findall(r"^E\d+", self.log(name), re.MULTILINE)[-1])

    def run_id(self) -> str:
        ((found,),) = self.rows(f"select id from runs_run where slug = '{self.slug}'")
        return str(found)

    def relay_log(self, home: Path | None = None) -> Path:
        """Return the run's folder in a relay's log. The default is the relay that the site starts."""
        run = UUID(self.run_id()).hex
        folders = [path.parent for path in (home or self.data / "relay").glob(f"**/{run}/records")]
        assert len(folders) == 1, folders
        return folders[0]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Query the site's database directly, while the site runs."""
        if url := self.environment.get("DATABASE_URL"):
            with psycopg.connect(url) as server:
                return server.execute(query.encode()).fetchall()
        database = next(self.data.glob("*.sqlite3"))
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20) as connection:
            return connection.execute(query).fetchall()

    def books(self, relay: Path | None = None) -> tuple[int, int]:
        ledger = sum(row["samples"] for row in self.items("ledger") if not row["reason"])
        return ledger, sum(record["samples"] for record in self.records(relay))

    def records(self, relay: Path | None = None) -> list[dict[str, Any]]:
        paths = sorted((self.relay_log(relay) / "records").glob("*.json"))  # leaves out files that are being written
        lines = [path.read_bytes().split(b"\n") for path in paths]
        return [json.loads(head) | {"contributions": json.loads(parts)} for head, _, parts, *_ in lines]

    def timeline(self) -> list[str]:
        return [row[0] for row in self.rows(f"select text from runs_activityline where {self.of_run()} order by id")]

    def of_run(self) -> str:
        return f"run_id = '{self.run_id()}'"

    def online(self, role: str) -> list[dict[str, Any]]:
        rows = self.rows(f"select cast(members as text) from coordination_presence where {self.of_run()}")
        return [member for row in rows for member in json.loads(row[0]) if member["role"] == role]

    def released(self, target: Path, limit_s: float = 120) -> Path:
        target.mkdir(parents=True)
        self._poll(lambda: self._has_downloaded(target / "release.zip"), limit_s, "the release is there", ASK_S)
        with zipfile.ZipFile(target / "release.zip") as packed:
            packed.extractall(target)
        return next(target.glob("*/config.json")).parent

    def _has_downloaded(self, path: Path) -> bool:
        try:
            Visitor(self.url).download(f"/api/v1/runs/{self.slug}/release/{self.slug}.zip", path)
        except Refused:
            return False
        return True

    def export(self, target: Path) -> Path:
        """Export the files that the reference replays: the recipe, the shards, the first snapshot and the records.
        Return the path of the final snapshot.
        """
        target.mkdir(parents=True)
        ((recipe, text),) = self.rows(f"select recipe, dataset_id from runs_run where slug = '{self.slug}'")
        found = self.rows(f"select digest from runs_shard where dataset_id = '{text}' order by position")
        shards = [{"digest": row[0]} for row in found]
        (target / "recipe.json").write_text(recipe)
        (target / "shards.json").write_text(json.dumps(shards))
        for shard in shards:
            name = f"{shard['digest']}.safetensors"
            shutil.copy(next(self.data.glob(f"**/shards/{name}")), target / name)
        named = self.rows(f'select file from runs_snapshot where {self.of_run()} order by "index"')
        snapshots = [row[0] for row in named]
        shutil.copy(next(self.data.glob(f"**/{snapshots[0]}*")), target / "step0.safetensors")
        shutil.copytree(self.relay_log() / "records", target / "records")
        return next(self.data.glob(f"**/{snapshots[-1]}*"))


def _answers(url: str) -> bool:
    try:
        Visitor(url).read("/healthz")
    except Refused:
        return False
    return True


def is_alive(process: psutil.Process) -> bool:
    """Return True if the process runs. A zombie counts as dead."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def slowed(pid: int, run_s: float = 0.05, rest_s: float = 0.05) -> Iterator[None]:
    """Suspend a process for part of the time, so that it runs as on a busy or slow machine."""
    import threading

    stop = threading.Event()

    def pulse() -> None:
        while not stop.is_set():
            os.kill(pid, signal.SIGSTOP)
            stop.wait(rest_s)
            os.kill(pid, signal.SIGCONT)
            stop.wait(run_s)

    thread = threading.Thread(target=pulse, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def in_variable(token: str) -> dict[str, str]:
    return {VARIABLE: token} if token else {}
