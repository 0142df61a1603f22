"""The demo's steps: people sign up, a run opens, volunteers train on real text, and the model is downloaded."""

import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from demo.processes import Children, agent_command, bare_environment, serve_command
from demo.recipes import RECIPES, Small
from demo.visitor import TOKEN, Refused, Visitor
from peer_agent.protocol.errors import Problem
from peer_agent.site.login_token import VARIABLE

PASSWORD = "many hands make light work"  # noqa: S105 (of accounts in the demo's own folder)
NAMES = ("Amina", "Teo", "Noor", "Ines", "Bao", "Lena", "Kofi", "Yuki")
SHORT = 100  # runs of at most this many steps are short
STEPS_BEFORE = 60  # steps in a run whose model is then adapted
START_S, RELEASE_S = 60.0, 240.0


@dataclass
class Demo:
    root: Path
    peers: int
    steps: int
    port: int
    recipe: str
    say: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        self.folder = self.root / stamp
        self.data, self.site = self.folder / "site", ""
        self.slug, self.step = "", 0
        self.people: dict[str, Visitor] = {}
        self.committed_before = 0  # samples in the relay's log from an earlier run

    def run(self, children: Children, environment: dict[str, str], *, forever: bool) -> dict[str, Any] | None:
        """Run the demo, and return its result. With `forever`, keep the site up until Ctrl-C instead.

        Raises Problem E403 if the demo cannot finish, and E402 if the ledger and the relay's log disagree.
        """
        self._start_site(children, environment)
        organizer, small = self._sign_up(NAMES[0]), RECIPES[self.recipe]
        model = self._trained_before(children, organizer, small.adapts) if small.adapts is not None else None
        self._open_run(organizer, self.recipe, small, self.steps, model)
        self._start_volunteers(children, organizer)
        self._watch(organizer, children, forever=forever)
        result = self._result(organizer)
        if forever:
            self.say(f"Finished. The model is in {result['model_path']}. The page stays up; Ctrl-C ends it.")
            while True:
                time.sleep(1.0)
        return result

    def epilogue(self) -> str:
        """Return the text shown after Ctrl-C: the progress, and how to open the site again."""
        far = f"Stopped after step {self.step} of {self.steps}. " if self.step else "Stopped. "
        return f"{far}To look at it again: MANYHANDS_DATA={self.data} .venv/bin/python manage.py serve"

    def _start_site(self, children: Children, environment: dict[str, str]) -> None:
        own = {**environment, "MANYHANDS_DATA": str(self.data)}
        children.start("site", serve_command(self.port), own, self.folder)
        ready = self.data / "serve.json"
        self._wait_for(ready.exists, START_S, "the site did not start", children)
        self.site = json.loads(ready.read_text())["url"]
        visitor = Visitor(self.site)
        self._wait_for(lambda: _answers(visitor), START_S, "the site does not answer", children)
        self.say(f"The site is at {self.site}/ (log in as {NAMES[0]}, password: {PASSWORD})")

    def _sign_up(self, name: str) -> Visitor:
        person = Visitor(self.site)
        person.submit("/signup/", {"username": name, "password": PASSWORD})
        return person

    def _trained_before(self, children: Children, organizer: Visitor, small: Small) -> Path:
        """Train the model that another run will adapt. Return its release archive."""
        self.say("First a small model is trained; what it learned is then adapted.")
        self._open_run(organizer, "causal_lm", small, STEPS_BEFORE)
        names = self._start_volunteers(children, organizer, "agents-before")
        self._watch(organizer, children, forever=False)
        archive = self._fetch_archive(organizer)
        self._wait_for(lambda: set(names) <= set(children.gone()), RELEASE_S, "agents did not leave", None)
        children.forget(names)
        self.committed_before = committed_samples(self.data / "relay")
        return archive

    def _open_run(
        self, organizer: Visitor, objective: str, small: Small, steps: int, model: Path | None = None
    ) -> None:
        material, content = small.material, small.material.content()
        self.say(f"{NAMES[0]} uploads {len(content) / 1e6:.1f} MB of {material.words}.")
        fields = {
            **small.fields,
            "objective": objective,
            "title": small.title,
            "purpose": small.purpose,
            "visibility": "public",
            "licence": material.licence,
            "may_share": "on",
            "target_steps": str(steps),
            "learning_rate": str(small.in_few_steps if steps <= SHORT else small.learning_rate),
            "warmup_steps": str(max(1, min(20, steps // 8))),
            "minimum_trainers": str(self.peers),
        }
        organizer.submit("/runs/new/", fields, {"text": (material.name, content)})
        self.slug, self.step = organizer.slug, 0
        if model is not None:
            brought = {"text": (model.name, model.read_bytes())}
            organizer.submit(f"/runs/{self.slug}/model/", {"licence": material.licence, "may_share": "on"}, brought)
        organizer.publish(self.slug)
        self.say(f"The run is at {self.site}/runs/{self.slug}/")
        ready = "the data could not be prepared"
        self._wait_for(lambda: self._state(organizer) in ("open", "finished"), RELEASE_S, ready, None)

    def _start_volunteers(self, children: Children, organizer: Visitor, folder: str = "agents") -> list[str]:
        """Start the agents and return the names of their child processes."""
        started = []
        for number in range(self.peers):
            name = NAMES[number % len(NAMES)] + (str(number // len(NAMES) + 1) if number >= len(NAMES) else "")
            person = organizer if number == 0 else self.people.get(name) or self._sign_up(name)
            self.people[name] = person
            token = TOKEN.search(person.submit("/machines/", {}))
            if token is None:
                raise Problem.of("E403", reason="the machines page returned no token", folder=self.folder)
            home = self.folder / folder / name
            home.mkdir(parents=True)
            command = agent_command(f"{self.site}/runs/{self.slug}/")
            started.append(f"{folder.replace('agents', 'agent')}-{name}")
            children.start(started[-1], command, bare_environment(home) | {VARIABLE: token[0]}, home)
        self.say(f"{self.peers} volunteers have started their agents.")
        return started

    def _watch(self, organizer: Visitor, children: Children, *, forever: bool) -> None:
        told = -1
        while True:
            facts = organizer.read_json(f"runs/{self.slug}")
            if facts["step"] != told and facts["loss"] is not None:
                told = self.step = facts["step"]
                entropy = facts["unigram_entropy"]
                beside = "" if entropy is None else f"   (guessing by word frequency: {entropy:.3f})"
                self.say(f"step {facts['step']:4d} of {facts['target_steps']}   loss {facts['loss']:.3f}{beside}")
            if facts["state"] == "finished":
                return
            gone = [name for name in children.gone() if facts["state"] != "finishing"]
            if gone and not forever and self._state(organizer) != "finished":
                raise Problem.of("E403", reason=f"{gone[0]} ended early", folder=self.folder)
            time.sleep(0.5)

    def _result(self, organizer: Visitor) -> dict[str, Any]:
        model = self._fetch_model(organizer)
        steps = organizer.read_items(f"runs/{self.slug}/steps")
        ledger = organizer.read_items(f"runs/{self.slug}/ledger")
        lines = organizer.read_items(f"runs/{self.slug}/leaderboard")
        losses = [step["loss"] for step in steps]
        result = {
            "run": self.slug,
            "steps": len(steps),
            "first_loss": losses[0],
            "final_loss": sum(losses[-5:]) / len(losses[-5:]),
            "seconds": time.monotonic() - self.began,
            "peers": [{"name": line["name"], "samples": line["samples"], "rounds": line["rounds"]} for line in lines],
            "ledger_samples": sum(row["samples"] for row in ledger),
            "committed_samples": committed_samples(self.data / "relay") - self.committed_before,
            "model_path": str(model),
        }
        if result["ledger_samples"] != result["committed_samples"]:
            reason = (
                f"{result['ledger_samples']} samples in the ledger, {result['committed_samples']} in the relay's log"
            )
            raise Problem.of("E402", reason=reason)
        return result

    def _fetch_model(self, organizer: Visitor) -> Path:
        archive, model = self._fetch_archive(organizer), self.folder / "model"
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(model)
        return next(model.rglob("config.json")).parent.resolve()

    def _fetch_archive(self, organizer: Visitor) -> Path:
        archive = self.folder / f"{self.slug}.zip"
        path = f"/api/v1/runs/{self.slug}/release/{self.slug}.zip"

        def fetched() -> bool:
            try:
                organizer.download(path, archive)
            except Refused:
                return False
            return True

        self._wait_for(fetched, RELEASE_S, "there is no release", None)
        return archive

    def _state(self, visitor: Visitor) -> str:
        return str(visitor.read_json(f"runs/{self.slug}")["state"])

    def _wait_for(self, done: Callable[[], bool], limit_s: float, reason: str, children: Children | None) -> None:
        until = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > until or (children is not None and children.gone()):
                raise Problem.of("E403", reason=reason, folder=self.folder)
            time.sleep(0.1)


def committed_samples(relay: Path) -> int:
    """Return the number of samples in all commit records in a relay's log. The first line of each record is JSON."""
    return sum(
        json.loads(path.read_bytes().split(b"\n", 1)[0])["samples"] for path in sorted(relay.glob("**/records/*.json"))
    )


def _answers(visitor: Visitor) -> bool:
    try:
        visitor.read("/healthz")
    except Refused:
        return False
    return True
