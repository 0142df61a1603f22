"""A run trains too many times on a small text. The page, the API and the agent warn that held-out loss is rising, and
the site releases the best snapshot.
"""

import subprocess
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from demo.processes import bare_environment
from demo.visitor import Visitor
from peer_agent.plot import perplexity_text
from tests.end_to_end.rig.browser import LIVE, Reader, chromium
from tests.end_to_end.rig.reference import weights_of
from tests.end_to_end.rig.swarm import ENDLESS, MANYHANDS, Swarm

CHARACTERS = 12_000  # one document is held out, which leaves 120 samples
CONTEXT = 32
RECIPE = {
    "layers": "1",
    "width": "128",
    "heads": "4",
    "context": str(CONTEXT),
    "optimizer": "adamw",
    "learning_rate": "0.01",
    "warmup_steps": "1",
    "weight_decay": "0",
    "decay": "constant",
    "target_batch": "96",  # nearly a whole pass; held-out loss is lowest about step 20, and a nat higher by step 70
    "micro_batch": "16",
    "snapshot_every": "12",
}
IS, WAS = "The model is overfitting: held-out loss rose from", "The model overfitted: held-out loss rose from"
RISE = 0.3  # nats: more than the measuring noise
PATIENCE_S = 900.0  # snapshots are measured while agents and other tests keep both cores busy


def test_overfitting_run_says_so_everywhere_and_offers_its_best(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path / "swarm") as swarm, chromium() as browser:
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, english[:CHARACTERS], trainers=1, steps=ENDLESS, **RECIPE)
        swarm.start_agent("teo", token=swarm.token_of(organizer))
        reader = Reader(browser)
        reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
        reader.page.wait_for_selector(LIVE, state="attached")
        swarm.wait(lambda: rise(swarm) > RISE, PATIENCE_S, "held-out loss rises")
        says_so_while_it_runs(swarm, reader)
        organizer.submit(f"/runs/{swarm.slug}/finish/", {})
        swarm.wait_finished(PATIENCE_S)
        swarm.wait(lambda: is_settled(swarm.facts()), PATIENCE_S, "the last snapshot is measured, the best released")
        says_so_when_it_is_over(swarm, reader)
        says_it_as_a_perplexity_too(swarm, reader)
        the_best_is_downloaded(swarm, tmp_path / "release")
        assert reader.faults == []


def rise(swarm: Swarm) -> float:
    """Return how far held-out loss is above its best value if the site reports overfitting, else 0."""
    facts = swarm.facts()
    return facts["heldout"]["loss"] - facts["heldout"]["best_loss"] if facts.get("warning") else 0.0


def is_settled(facts: dict[str, Any]) -> bool:
    heldout = facts["heldout"]
    return bool(heldout["step"] == facts["step"] and facts["released_step"] == heldout["best_step"])


def says_so_while_it_runs(swarm: Swarm, reader: Reader) -> None:
    """Require that the API, page, agent output and `manyhands status` all show the warning."""
    assert swarm.facts()["warning"].startswith(IS)
    reader.wait_for(f"document.querySelector('#part-loss .warning')?.textContent.startsWith('{IS}') ?? false")
    assert IS in Visitor(swarm.url).read(f"/runs/{swarm.slug}/"), "also without a script"
    swarm.wait(lambda: swarm.said("teo", IS), 180, "the agent says so")
    swarm.wait(lambda: IS in status(swarm), 30, "its status, which is a second old at most, says so too")
    assert "held-out loss" in status(swarm).splitlines()[-1]
    assert swarm.said("teo", IS) == 1, "told when it begins"


def status(swarm: Swarm) -> str:
    home = bare_environment(swarm.folder / "teo")
    command = [MANYHANDS, "status"]
    return subprocess.run(command, env=home, capture_output=True, text=True, timeout=60, check=True).stdout


def says_so_when_it_is_over(swarm: Swarm, reader: Reader) -> None:
    facts = swarm.facts()
    best, last = facts["heldout"]["best_step"], facts["heldout"]["step"]
    assert facts["warning"].startswith(WAS)
    assert [snapshot["step"] for snapshot in swarm.items("snapshots") if snapshot["is_best"]] == [best]
    assert f"The model of step {best} is released: it is the best on held-out data." in swarm.timeline()
    reader.page.reload()
    text = reader.page.inner_text("main")
    assert WAS in text
    assert f"This model is from step {best}, the best step of this run on held-out data. The last step, {last}" in text


def says_it_as_a_perplexity_too(swarm: Swarm, reader: Reader) -> None:
    """Select perplexity through its link, which also works without scripts. Require that the live page remembers the
    choice.
    """
    loss = swarm.facts()["heldout"]["loss"]
    reader.page.click("text=Show perplexity")
    reader.page.wait_for_selector(LIVE, state="attached")
    shown = reader.page.inner_text("#part-loss [data-panel='as=perplexity'] h2").split()
    assert shown[:3] == ["Held-out", "perplexity", perplexity_text(loss)]
    plain = Visitor(swarm.url).read(f"/runs/{swarm.slug}/?as=perplexity")
    assert f'Held-out perplexity <span class="big figure">{perplexity_text(loss)}</span>' in plain
    reader.page.click("text=Show loss")
    reader.page.wait_for_selector(LIVE, state="attached")
    assert reader.page.inner_text("#part-loss [data-panel='as=loss'] h2").startswith("Held-out loss")


def the_best_is_downloaded(swarm: Swarm, target: Path) -> None:
    """Require that the release has the best snapshot's parameters, and that torch alone measures the reported loss."""
    torch.set_num_threads(1)
    told = swarm.facts()["heldout"]
    folder = swarm.released(target)
    (best,) = [snapshot for snapshot in swarm.items("snapshots") if snapshot["is_best"]]
    card = (folder / "README.md").read_text()
    assert f"`{best['file']}`" in card, "its digest"
    assert "**The run overfitted after this model.**" in card
    assert f"Held-out loss rose from {told['best_loss']:.3f} at step {told['best_step']} to " in card
    theirs = weights_of(next(swarm.data.glob(f"**/{best['file']}.safetensors")))
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert all(file.get_tensor(name).equal(theirs[name]) for name in names)
    assert len(names) == len(theirs)
    (heldout,) = swarm.data.glob("**/heldout.safetensors")
    measured = heldout_loss(folder, heldout)
    assert abs(measured - told["best_loss"]) < 1e-4
    assert told["loss"] - measured > RISE


@torch.no_grad()
def heldout_loss(model: Path, heldout: Path) -> float:
    """Return the held-out text's loss in nats per token. A sample's first token is not counted, as nothing precedes
    it.
    """
    tokens = load_file(heldout)["tokens"].long()
    released: Any = AutoModelForCausalLM.from_pretrained(model)
    nats, count = 0.0, 0
    for start in range(0, len(tokens), CONTEXT):
        sample = tokens[start : start + CONTEXT]
        logits = released(sample[None]).logits[0, :-1]
        nats += float(functional.cross_entropy(logits, sample[1:], reduction="sum"))
        count += len(sample) - 1
    return nats / count
