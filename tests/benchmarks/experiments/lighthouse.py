"""Lighthouse scores of the pages that new visitors open first, while a run's feed changes. Described in README.md."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo.processes import ROOT
from scripts.setup import browser_on_path
from tests.benchmarks.pages import SLUG, begin, fill
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.servers import private_postgres

VERSION = "12.8.2"  # the last version that supports Node 20
FOLDER = ROOT / "var" / "lighthouse"
FORMS = {"phone": (), "desktop": ("--preset=desktop",)}
PAGES = ("/", f"/runs/{SLUG}/", f"/runs/{SLUG}/leaderboard/", "/people/Ines/")
KINDS = ("performance", "accessibility", "best-practices", "seo")
WANTED = {"performance": 99, f"performance of /runs/{SLUG}/": 95}  # required scores; all others must be 100
STEP_S = 2.0  # seconds between two steps of the replayed feed
PATIENCE_S, TRIES = 180.0, 3


def program() -> Path:
    """Return the path of the Lighthouse program, after installing it if it is missing."""
    found = FOLDER / "node_modules" / ".bin" / "lighthouse"
    if not found.exists():
        npm = shutil.which("npm", path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}") or "npm"
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), f"lighthouse@{VERSION}"]
        subprocess.run(command, check=True, capture_output=True, timeout=10 * PATIENCE_S)
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    command = [sys.executable, str(ROOT / "manage.py"), "serve", "--host", "127.0.0.1", "--port", "0"]
    log = folder / "site.log"
    with log.open("w") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT) as site:
        try:
            for _ in range(600):
                words = log.read_text().split()
                if (address := next((word for word in words if word.startswith("http://127")), "")) or site.poll():
                    break
                threading.Event().wait(0.1)
            yield address.rstrip("/")
        finally:
            site.terminate()


@contextmanager
def moving() -> Iterator[None]:
    from accounts.models import Machine
    from runs.models import Run
    from tests.runs.factories import committed

    over = threading.Event()
    run, machine = Run.objects.get(slug=SLUG), Machine.objects.first()
    assert machine is not None

    def steps() -> None:
        while not over.wait(STEP_S):
            committed(run, (machine, 8), loss=3.0)

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def shown_to_strangers() -> None:
    """Make the run public. By default only its members can see a run of this size."""
    from accounts.models import Person
    from runs.models import Run

    Run.objects.filter(slug=SLUG).update(visibility=Run.Visibility.PUBLIC)
    Person.objects.filter(username="Ines").update(has_public_page=True)


def marks(address: str, form: str, folder: Path) -> dict[str, float]:
    report = folder / "report.json"
    flags = "--headless=new --no-sandbox --disable-gpu"
    command = [
        str(program()),
        address,
        "--quiet",
        "--output=json",
        f"--output-path={report}",
        f"--chrome-flags={flags}",
    ]
    command += [f"--only-categories={','.join(KINDS)}", *FORMS[form]]
    chrome = shutil.which(browser_on_path() or "") or ""
    environment = {**os.environ, **({"CHROME_PATH": chrome} if chrome else {})}
    for _ in range(TRIES):  # Lighthouse sometimes fails with "Please run Lighthouse again"
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(report.read_bytes())
    audits = found["audits"]
    return {
        **{kind: 100 * (found["categories"][kind]["score"] or 0) for kind in KINDS},
        "layout_shift": audits["cumulative-layout-shift"]["numericValue"],
        "largest_paint_ms": audits["largest-contentful-paint"]["numericValue"],
    }


def measured(looks: int, members: int, steps: int) -> Figures:
    with tempfile.TemporaryDirectory() as name, private_postgres() as url:
        folder = Path(name)
        begin(folder, url)
        fill(members, steps)
        shown_to_strangers()
        program()
        pages: dict[str, Any] = {}
        with served(folder) as site, moving():
            for form in FORMS:
                for path in PAGES:
                    seen = [marks(site + path, form, folder) for _ in range(looks)]
                    pages[f"{form} {path}"] = {what: statistics.median(each[what] for each in seen) for what in seen[0]}
                    say(f"{form} {path}: {pages[f'{form} {path}']}")
    return {
        "lighthouse": VERSION,
        "looks": looks,
        "members": members,
        "steps": steps,
        "short": short(pages),
        "pages": pages,
    }


def short(pages: dict[str, Any]) -> list[str]:
    return [
        f"{page}: {kind} {found[kind]:.0f}"
        for page, found in pages.items()
        for kind in KINDS
        if found[kind] < WANTED.get(f"{kind} of {page.split(' ')[1]}", WANTED.get(kind, 100))
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.lighthouse", description=__doc__)
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args(arguments)
    return publish("lighthouse", lambda: measured(asked.looks, asked.members, asked.steps))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
