"""Train a small sahajBERT on two Bengali texts with four agents, then fine-tune the release to recognize names and
topics (../README.md).
"""

import argparse
import json
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from demo.processes import ROOT
from demo.visitor import Visitor
from peer_agent.recipes.masked_lm import SMALL
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.end_to_end.rig.browser import Reader, chromium, sign_up
from tests.end_to_end.rig.swarm import PASSWORD, Swarm

TEXTS = {"poems.txt": 0.77, "essays.txt": 0.23}  # texts and their shares in the mix, as for sahajBERT's two sources
LICENCE = "out of copyright"
# one agent has a core to itself; the others share the other core
FAST, SLOW = ("taskset", "-c", "0"), ("taskset", "-c", "1")
PREPARED_MS, READY_S, STEP_S = 300_000, 300.0, 7200.0
LEAVES_AT, JOINS_AT = (0.4, 0.6), 0.2  # moments, as shares of all steps, at which two agents leave and the fourth joins
# learning rates tried in fine-tuning; pretrained and fresh weights have different best rates
RATES = ("0.0003", "0.001", "0.003")
SCRIPTS = {"names": "token_classification.py", "topics": "sequence_classification.py"}


def unpacked(data: Path, folder: Path) -> dict[str, Path]:
    paths = {}
    for name in TEXTS:
        paths[name] = folder / name
        paths[name].write_bytes(lzma.decompress((data / f"{name}.xz").read_bytes()))
    return paths


def opened(swarm: Swarm, texts: dict[str, Path], recipe: dict[str, str]) -> str:
    """Sign up in a browser and open a run that mixes both texts. Return the run's address."""
    with chromium() as browser:
        reader = Reader(browser)
        page = reader.page
        sign_up(reader, swarm.url, "organizer", PASSWORD)
        page.goto(f"{swarm.url}/runs/new/?recipe=masked_lm&preset=sahajBERT%2C+small")
        first, further = texts.values()
        page.fill("input[name=title]", "A small model of Bengali")
        page.set_input_files("input[name=text]", first)
        page.fill("input[name=licence]", LICENCE)
        page.check("input[name=may_share]")
        page.evaluate("document.querySelectorAll('details').forEach((folded) => (folded.open = true))")
        for name, value in recipe.items():
            field = page.locator(f"form [name={name}]")
            is_list = field.evaluate("(field) => field.tagName === 'SELECT'")
            field.select_option(value) if is_list else field.fill(value)
        page.click('form button:text-is("Continue")')
        page.click("text=Add another text", timeout=PREPARED_MS)
        page.set_input_files("input[name=text]", further)
        page.fill("input[name=licence]", LICENCE)
        page.check("input[name=may_share]")
        page.click("main button.main")
        page.wait_for_selector("input[name=weight_1]", timeout=PREPARED_MS)
        for number, weight in enumerate(TEXTS.values()):
            page.fill(f"input[name=weight_{number}]", str(weight))
        page.click("text=Save weights")
        page.click("text=Publish run")
        page.wait_for_selector("button:has-text('Pause')", timeout=PREPARED_MS)
        assert not reader.faults, reader.faults
        return page.url.split("/runs/")[1].split("/")[0]


def made_by_four(swarm: Swarm, token: Any, steps: int) -> list[str]:
    """Train all steps, starting with three agents. A fourth joins late, and two of the first three leave. Return the
    events as text.
    """
    began, happened = time.monotonic(), []

    def join(name: str, place: tuple[str, ...]) -> None:
        swarm.start_agent(name, token=token(), inside=place)

    def tell(words: str) -> None:
        happened.append(f"step {swarm.head()}: {words}")
        say(f"{time.monotonic() - began:.0f} s, {happened[-1]}")

    join("fast", FAST)
    for name in ("slow-1", "slow-2"):
        join(name, SLOW)
    swarm.wait_for_step(int(JOINS_AT * steps), STEP_S)
    join("late", SLOW)
    tell("late joins")
    for part, name in zip(LEAVES_AT, ("slow-1", "slow-2"), strict=True):
        swarm.wait_for_step(int(part * steps), STEP_S)
        swarm.processes[name].send_signal(signal.SIGINT)
        tell(f"{name} leaves")
    swarm.wait_finished(STEP_S)
    tell("finished")
    return happened


def mixed(swarm: Swarm) -> list[float]:
    sources = [row[0] for row in swarm.rows("select source from runs_shard order by position")]
    used = [0] * len(TEXTS)
    for shard, ranges in swarm.rows("select shard, cast(ranges as text) from runs_coverage"):
        used[sources[shard]] += sum(stop - start for start, stop in json.loads(ranges))
    return [part / max(sum(used), 1) for part in used]


def newest(swarm: Swarm) -> dict[str, Any]:
    return max(swarm.items("snapshots"), key=step_of)


def step_of(snapshot: dict[str, Any]) -> int:
    return int(snapshot["step"])


def tuned(model: Path, data: Path, what: str, seeds: int, epochs: int) -> dict[str, Any]:
    """Fine-tune the released weights and fresh weights on one core. Return the scores for each seed."""
    files = {
        "names": ("--train", data / "ner-train.txt.xz", "--test", data / "ner-test.txt.xz"),
        "topics": (
            *("--train", data / "topic-train.tsv.xz", "--dev", data / "topic-dev.tsv.xz"),
            *("--test", data / "topic-test.tsv.xz"),
        ),
    }[what]
    command = [sys.executable, str(ROOT / "examples" / SCRIPTS[what]), str(model), *map(str, files)]
    context = json.loads((model / "config.json").read_bytes())["max_position_embeddings"]
    given = ("--seeds", str(seeds), "--epochs", str(epochs), "--length", str(context), "--learning-rate", *RATES)
    line = ""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, *given], stdout=subprocess.PIPE, text=True, env=alone) as script:
        for line in script.stdout or ():
            say(f"{what}: {line.rstrip()}")
    assert script.returncode == 0, f"{SCRIPTS[what]} ended with {script.returncode}"
    found: dict[str, Any] = json.loads(line)
    return found


def measured(data: Path, given: argparse.Namespace) -> Figures:
    steps = given.steps
    recipe = {"target_batch": str(given.batch), "target_steps": str(steps), "snapshot_every": str(max(steps // 20, 1))}
    recipe |= {"warmup_steps": str(max(steps // 10, 1)), "minimum_trainers": "3"}
    recipe |= dict(each.split("=", 1) for each in given.set)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Swarm(folder / "swarm") as swarm:
            swarm.start_site()
            swarm.slug = opened(swarm, unpacked(data, folder), recipe)
            organizer = Visitor(swarm.url)
            organizer.submit("/login/", {"username": "organizer", "password": PASSWORD})
            began = time.monotonic()
            happened = made_by_four(swarm, lambda: swarm.token_of(organizer), steps)
            seconds = time.monotonic() - began
            records = swarm.records()
            parts = mixed(swarm)
            model = swarm.released(given.out or folder / "model", READY_S)
            swarm.wait(lambda: newest(swarm)["heldout_figures"], READY_S, "the last snapshot is measured")
            snapshots = swarm.items("snapshots")
        with ThreadPoolExecutor() as pool:
            tune = partial(tuned, model, data, seeds=given.seeds, epochs=given.epochs)
            found = dict(zip(SCRIPTS, pool.map(tune, SCRIPTS), strict=True))
    held = sorted((each["step"], each["heldout_loss"]) for each in snapshots if each["heldout_loss"] is not None)
    losses = [record["loss"] for record in records]
    return {
        **{name: value for name, value in vars(given).items() if name not in ("data", "out")},
        "seconds": seconds,
        "happened": happened,
        "mix": parts,
        "losses": [sum(part) / len(part) for part in (losses[:5], losses[-5:])],
        "heldout": held,
        "figures": max(snapshots, key=step_of)["heldout_figures"],
        "exact": sum(bool(record["exact"]) for record in records),
        **found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.bengali", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with poems, essays, names and topics")
    parser.add_argument("--out", type=Path, help="a new folder, in which the released model is kept")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=SMALL.target_batch)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="another field of the form")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6, help="of fine-tuning, at most")
    given = parser.parse_args()
    return publish("bengali", lambda: measured(given.data.resolve(), given))


if __name__ == "__main__":
    sys.exit(main())
