"""The time that the form for a new run promises, compared with a run of that size. Described in README.md."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from demo.recipes import LICENCE, python_text
from peer_agent.recipes.causal_lm import CausalLM
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.end_to_end.rig.swarm import Swarm

PATIENCE_S = 7200.0


def measured(characters: int, machines: int, folder: Path) -> Figures:
    """Publish a run with the form's first size, train it to its end, and return both times in seconds."""
    from web.pages.runs.forms.new_run import NewRunForm
    from web.pages.runs.forms.recipe import estimate_of

    usual = NewRunForm(usual=CausalLM(), upload_limit_mb=1)
    with Swarm(folder / "swarm") as swarm:
        swarm.start_site()
        person = swarm.sign_up("Amina")
        fields = {"title": "Promised", "visibility": "public", "licence": LICENCE, "may_share": "on", **usual.begun}
        person.submit("/runs/new/", fields, {"text": ("text.txt", python_text()[:characters].encode())})
        swarm.slug = person.slug
        person.publish(swarm.slug)
        swarm.wait_for_state("open", PATIENCE_S)
        steps = int(swarm.facts()["target_steps"])
        token = swarm.token_of(person)
        for number in range(machines):
            swarm.start_agent(f"laptop {number + 1}", token=token)
        swarm.wait_for_step(1, PATIENCE_S)
        say(f"{steps} steps begin")
        begun = time.monotonic()
        swarm.wait_for_step(steps, PATIENCE_S)
        taken = time.monotonic() - begun
    promised = estimate_of(usual.usual, machines).crowds["laptops"] * steps
    return {"machines": machines, "steps": steps, "promised_s": promised, "taken_s": taken, "ratio": taken / promised}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.duration", description=__doc__)
    parser.add_argument("--characters", type=int, default=300_000, help="length of the text")
    parser.add_argument("--machines", type=int, default=2)
    asked = parser.parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MANYHANDS_DATA"] = folder
        import django

        django.setup()
        return publish("duration", lambda: measured(asked.characters, asked.machines, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
