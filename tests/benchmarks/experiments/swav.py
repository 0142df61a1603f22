"""SwAV on real images: the accuracy of a linear probe on a trunk trained by three agents, by one, or by none
(../README.md).
"""

import argparse
import gzip
import io
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from peer_agent.recipes import parse_recipe
from peer_agent.recipes.image_ssl import SMALL, ImageSSL
from peer_agent.recipes.image_ssl.training import Labelled, SwAV, probe_accuracy
from peer_agent.recipes.images.pixels import as_floats, load_shard
from peer_agent.recipes.images.resnet import recalibrate
from peer_agent.training.replica import Replica
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.end_to_end.rig.swarm import Swarm, Uploaded
from web.pages.runs.forms.recipe import values_of

DEBIANS = Path("/usr/share/datasets/fashion-mnist")  # installed by Debian's package dataset-fashion-mnist
SIDE, AT_ONCE = 28, 256
LIMIT_S = 3600.0


class Pictures(NamedTuple):
    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def pictures(folder: Path, name: str, most: int) -> Pictures:
    """Return the first `most` images and labels of the MNIST files with this name."""
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, SIDE, SIDE)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read()[8:], np.uint8).astype(np.int64)
    return Pictures(pixels[:most], labels[:most])


def tar_of(images: Pictures) -> Uploaded:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, (pixels, label) in enumerate(zip(*images, strict=True)):
            content = io.BytesIO()
            Image.fromarray(pixels).save(content, "PNG")
            entry = tarfile.TarInfo(f"images/{label}/{number:05}.png")
            entry.size = len(content.getvalue())
            archive.addfile(entry, io.BytesIO(content.getvalue()))
    return "images.tar", packed.getvalue()


class Trained(NamedTuple):
    export: Path
    final: Path
    losses: list[float]
    seconds: float


def trained(folder: Path, tar: Uploaded, recipe: dict[str, str], agents: int, steps: int) -> Trained:
    with Swarm(folder) as swarm:
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, tar, trainers=agents, steps=steps, **recipe)
        began = time.monotonic()
        for number in range(agents):
            swarm.start_agent(f"agent-{number}", token=swarm.token_of(organizer), threads=2 if agents == 1 else 1)
        swarm.wait_finished(LIMIT_S)
        seconds = time.monotonic() - began
        final = swarm.export(folder / "export")
        losses = [float(record["loss"]) for record in swarm.records() if record["loss"] is not None]
        return Trained(folder / "export", final, losses, seconds)


def accuracy_of(run: Trained, snapshot: Path, learned: Pictures, held: Pictures) -> float:
    recipe = parse_recipe((run.export / "recipe.json").read_text())
    assert isinstance(recipe, ImageSSL)
    replica = Replica(recipe)
    replica.load(snapshot)
    assert isinstance(replica.model, SwAV)
    trunk = replica.model.trunk
    recalibrate(trunk, (load_shard(path) for path in sorted(run.export.glob("*.safetensors")) if len(path.stem) == 64))
    parts = [Labelled(features(trunk, images.pixels, recipe.side), images.labels) for images in (learned, held)]
    return probe_accuracy(*parts)


@torch.no_grad()
def features(trunk: torch.nn.Module, pixels: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    """Return the trunk's features for whole images, in an array of shape [images, features]."""
    sized = np.stack([np.array(Image.fromarray(one).convert("RGB").resize((side, side), 3)) for one in pixels])
    made = [
        trunk(pixel_values=torch.from_numpy(as_floats(sized[start : start + AT_ONCE]))).pooler_output.flatten(1)
        for start in range(0, len(sized), AT_ONCE)
    ]
    found: NDArray[np.float32] = torch.cat(made).numpy()
    return found


def compared(data: Path, images: int, probed: int, steps: int) -> Figures:
    tar = tar_of(pictures(data, "train", images))
    learned, held = pictures(data, "train", probed), pictures(data, "t10k", 10_000)
    recipe = {name: str(value) for name, value in values_of(SMALL).items()}
    recipe |= {"objective": "image_ssl", "flip": "0.5", "strength": "0.4", "snapshot_every": str(steps)}
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Trained] = {}
        for name, agents in (("swarm", 3), ("single", 1)):
            runs[name] = trained(Path(folder) / name, tar, recipe, agents, steps)
            say(f"{name}: loss {runs[name].losses[0]:.3f} to {runs[name].losses[-1]:.3f}, {runs[name].seconds:.0f} s")
        found = {name: accuracy_of(run, run.final, learned, held) for name, run in runs.items()}
        found["random"] = accuracy_of(runs["swarm"], runs["swarm"].export / "step0.safetensors", learned, held)
    return {
        "steps": steps,
        "images": images,
        **{f"{name}_accuracy": accuracy for name, accuracy in found.items()},
        **{f"{name}_s": run.seconds for name, run in runs.items()},
        **{f"{name}_losses": [run.losses[0], run.losses[-1]] for name, run in runs.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.swav", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEBIANS, help="a folder with the four files of MNIST's format")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--probed", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    return publish("swav", lambda: compared(given.data, given.images, given.probed, given.steps))


if __name__ == "__main__":
    sys.exit(main())
