"""The site's release and an agent's snapshots can be downloaded with the Hub's own client, and they load.

The Hub fails half of all calls, before or after doing the work, and the site is killed during an upload.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.end_to_end.rig.swarm import Swarm
from tests.publishing.hub_double import Hub, running_hub

STEPS, EVERY = 6, 2
SITES, AGENTS = "hf_token_of_the_site", "hf_token_of_the_agent"


def test_both_come_back_and_load(tmp_path: Path, english: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with running_hub() as hub, Swarm(tmp_path / "swarm", {"MANYHANDS_HUB_ENDPOINT": hub.url}) as swarm:
        hub.account("amina", SITES)
        hub.account("teo", AGENTS)
        hub.held = "amina/words"
        train(swarm, hub, english)
        hub.failing = 0.0
        released = fetched(hub, "amina/words", tmp_path / "released")
        snapshot = fetched(hub, "teo/live", tmp_path / "snapshot")
        assert digest(released / "model.safetensors") == digest(snapshot / "model.safetensors")
        for folder in (released, snapshot):
            check(folder)
        assert_same_logits(released, snapshot)
        assert_same_card(released, snapshot)
        compare_with_site(swarm, released)
        assert hub.authorizations <= {f"Bearer {SITES}", f"Bearer {AGENTS}", ""}
        assert_nobody_else_saw(swarm)


def train(swarm: Swarm, hub: Hub, english: str) -> None:
    """Train a run that both the site and the agent publish. The organizer asks for publication before there is
    anything to publish.
    """
    swarm.start_site()
    organizer = swarm.sign_up("organizer")
    swarm.open_run(organizer, english, trainers=2, steps=STEPS, snapshot_every=str(EVERY))
    page = f"/runs/{swarm.slug}/publish/"
    organizer.submit(page, {"action": "save", "token": SITES})
    organizer.submit(page, {"action": "publish", "repository": "amina/words", "checkpoint_every": str(EVERY)})
    # longer series of failures cause pauses of minutes, which other tests cover
    hub.failing, hub.most_in_a_row = 0.5, 3
    token = swarm.token_of(organizer)
    swarm.start_agent("publisher", token=token, options="--publish teo/live", HF_TOKEN=AGENTS, HF_ENDPOINT=hub.url)
    organizer.submit(page, {"agreed": "1"}, action=f"/runs/{swarm.slug}/named/")
    swarm.start_agent("other", token=swarm.token_of(organizer))
    swarm.wait(hub.is_holding.is_set, 300, "a large file is on its way to the Hub")
    swarm.kill("site")
    swarm.start_site()
    swarm.wait_finished(300)
    swarm.wait(lambda: f"{hub.url}/amina/words" in organizer.read(page), 240, "the release is on the Hub")
    swarm.wait(lambda: swarm.processes["publisher"].poll() is not None, 300, "the publisher has left")
    assert swarm.processes["publisher"].returncode == 0, swarm.log("publisher")
    assert f"step {STEPS} is on the Hub: {hub.url}/teo/live" in swarm.log("publisher")
    # one commit by the Hub itself, and one with the last snapshot
    assert len(hub.repositories["teo/live"].commits) >= 2
    assert set(hub.repositories) == {"amina/words", "teo/live"}


def fetched(hub: Hub, repository: str, folder: Path) -> Path:
    snapshot_download(repository, endpoint=hub.url, local_dir=folder, token=False)
    return folder


def check(folder: Path) -> None:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert {name for line in lines for name in [line[66:]]} >= {"README.md", "model.safetensors", "tokenizer.json"}
    for line in lines:
        assert digest(folder / line[66:]) == line[:64], line


def assert_same_logits(*folders: Path) -> None:
    said = []
    for folder in folders:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        said.append(model(**tokenizer("Many hands", return_tensors="pt")).logits)
    assert torch.isfinite(said[0]).all()
    assert torch.equal(*said)


def assert_same_card(released: Path, snapshot: Path) -> None:
    """Require that the agent's model card shows the same curve and people as the release, naming those who agreed to
    it.
    """
    cards = [(folder / "README.md").read_text() for folder in (released, snapshot)]
    people = [card.split("## People")[1].split("##")[0] for card in cards]
    assert people[0] == people[1]
    assert "| organizer | " in people[0]
    assert (released / "loss-curve.svg").read_bytes() == (snapshot / "loss-curve.svg").read_bytes()
    assert "(loss-curve.svg)" in cards[1]


def compare_with_site(swarm: Swarm, folder: Path) -> None:
    offered = {file.name: file for file in next(swarm.data.glob("storage/runs/*/release-*")).iterdir()}
    names = {path.name for path in folder.iterdir() if path.is_file() and path.name != ".gitattributes"}
    assert names == set(offered) - {f"{swarm.slug}.zip"}
    for name in names:
        assert digest(folder / name) == digest(offered[name]), name


def assert_nobody_else_saw(swarm: Swarm) -> None:
    """Require that neither token appears in plain text in any file or log."""
    for path in swarm.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert SITES.encode() not in content, path
            assert AGENTS.encode() not in content, path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
