"""All trainers are killed after the last commit. The site rebuilds the model from the log, bit for bit."""

import json
import zipfile
from pathlib import Path

from safetensors import safe_open

from demo.visitor import Visitor
from runs.snapshots.verification import MADE
from tests.end_to_end.rig.reference import weights_of
from tests.end_to_end.rig.swarm import Swarm

STEPS = 4
TRAINERS = ("one", "two")


def forbid_hand_in(swarm: Swarm, name: str) -> None:
    """Create a folder in place of the file that this machine would upload as its state, so that the upload fails."""
    (swarm.folder / name / "manyhands" / "cache" / f"state-{STEPS}.safetensors").mkdir(parents=True)


def test_the_release_appears_without_any_volunteer(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path / "swarm") as swarm:
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, english, trainers=2, steps=STEPS, snapshot_every="50")
        for name in TRAINERS:
            forbid_hand_in(swarm, name)
            swarm.start_agent(name, token=swarm.token_of(organizer))
        swarm.wait(lambda: any(STEPS in swarm.digests(name) for name in TRAINERS), 120, "the last step is applied")
        for name in TRAINERS:
            swarm.kill(name)
        swarm.wait_finished(300)
        reported = {swarm.digests(name)[STEPS] for name in TRAINERS if STEPS in swarm.digests(name)}
        snapshot = swarm.items("snapshots")[-1]
        assert MADE in swarm.timeline()
        assert (snapshot["step"], {snapshot["state_digest"]}) == (STEPS, reported)
        assert snapshot["digest"] == swarm.items("steps")[-1]["update_digest"]
        check_release(swarm, swarm.export(tmp_path / "export"))


def check_release(swarm: Swarm, final: Path) -> None:
    archive, model = swarm.folder / "release.zip", swarm.folder / "model.safetensors"
    Visitor(swarm.url).download(f"/api/v1/runs/{swarm.slug}/release/{swarm.slug}.zip", archive)
    with zipfile.ZipFile(archive) as zipped:
        model.write_bytes(zipped.read(f"{swarm.slug}/model.safetensors"))
        assert json.loads(zipped.read(f"{swarm.slug}/config.json"))["model_type"] == "gpt2"
    theirs = weights_of(final)
    with safe_open(model, "pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            assert file.get_tensor(name).equal(theirs[name]), name
