"""Three machines of unequal speed together produce the model that one machine would produce (rules 13, 32 and 33)."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from demo.recipes import digits_tar
from demo.visitor import Visitor
from peer_agent.protocol.log.records import from_lines, to_json
from tests.end_to_end.rig import image_reference, masked_reference
from tests.end_to_end.rig.reference import main, weights_of
from tests.end_to_end.rig.swarm import Swarm, Uploaded, slowed
from tests.recipes.finetune_lora.small_base import model_folder, zipped

STEPS, LOSSY_STEPS = 20, 6
TRIES = 3  # runs: if a busy computer stops a machine for a second, a step leaves the machine out and is not exact
LESS_THAN_IS_TRAINED = 70_000  # characters; the run uses less data than this
BOUNDS = {"lamb": 1e-6, "adamw": 1e-5}
RATES = {"lamb": "0.01", "adamw": "0.001"}
MASKED = {
    "objective": "masked_lm",
    "family": "albert",
    "context": "48",
    "embedding": "32",
    "tokenizer": "unigram",
    "lowercase": "1",
    "learning_rate": RATES["lamb"],
}
IMAGES = {
    "image_classification": {"optimizer": "sgd", "learning_rate": "0.001", "shift": "0.1", "flip": "1"},
    "image_ssl": {
        "optimizer": "larc",
        "learning_rate": "0.05",
        "clip_norm": "0",
        "weight_decay": "1e-6",
        "epsilon": "1e-8",
        "large_side": "32",
        "large_least": "0.3",
        "large_most": "1",
        "small": "2",
        "small_side": "16",
        "small_least": "0.1",
        "small_most": "0.3",
        "hidden": "24",
        "projection": "16",
        "prototypes": "12",
        "temperature": "0.1",
        "sharpness": "0.05",
        "sinkhorn_steps": "3",
        "frozen_steps": "3",
        "queue": "0",
        "queue_from": "0",
        **dict.fromkeys(("flip", "jitter", "strength", "grey", "blur"), "0.5"),
    },
}
# Small steps and large units. Otherwise rounding flips ReLUs, and the difference triples with each step. A single
# machine that starts with parameters times 1 ± 1e-7 differs as much.
ADAPTERS = {
    "objective": "finetune_lora",
    "rank": "4",
    "alpha": "8",
    "matrices": "all",
    "context": "32",
    "optimizer": "adamw",
    "learning_rate": "0.005",
    "beta2": "0.999",
}
OF_IMAGES = {"family": "resnet10", "width": "8", "side": "32", "micro_batch": "32", "target_batch": "160"}
# With these settings ReLUs rarely flip. A flip costs up to 2e-4. Without a flip the difference is 1e-8 to 1e-7.
IMAGE_STEPS, IMAGE_BOUND = 5, {"image_classification": 1e-4, "image_ssl": 1e-3}
# Name, CPU capability, threads. The slowest machine is also suspended half of the time.
MACHINES = (("quick", "", 2), ("old", "default", 1), ("slow", "avx2", 1))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, Visitor]]:
    with Swarm(tmp_path_factory.mktemp("exactness")) as swarm:
        swarm.start_site()
        yield swarm, swarm.sign_up("organizer")


def train(
    site: tuple[Swarm, Visitor],
    target: Path,
    data: str | Uploaded,
    model: Uploaded | None = None,
    /,
    *,
    steps: int,
    **recipe: str,
) -> tuple[Path, dict[str, dict[int, str]]]:
    """Repeat the training until no step of a run leaves a machine out. Return the final snapshot and each machine's
    digests.
    """
    for _ in range(TRIES):
        final, digests = train_once(site, target, data, model, steps=steps, **recipe)
        records = [to_json(from_lines(path.read_bytes())) for path in (target / "records").iterdir()]
        left_out = [r for r in records if not r["exact"] and not any("stale" in part for part in r["contributions"])]
        if not left_out:
            return final, digests
        print("trained again, for these steps left somebody out:", left_out)
        shutil.rmtree(target)
    raise AssertionError(f"in each of {TRIES} runs machines were left out of steps")


def train_once(
    site: tuple[Swarm, Visitor],
    target: Path,
    data: str | Uploaded,
    model: Uploaded | None,
    /,
    *,
    steps: int,
    **recipe: str,
) -> tuple[Path, dict[str, dict[int, str]]]:
    """Train on three processes of unequal speed, and export the run to `target`. Return the final snapshot and the
    digests."""
    swarm, organizer = site
    swarm.open_run(organizer, data, model, trainers=3, steps=steps, **recipe)
    names = {name: f"{name}-{swarm.slug}" for name, _, _ in MACHINES}
    for name, capability, threads in MACHINES:
        more = {"ATEN_CPU_CAPABILITY": capability} if capability else {}
        swarm.start_agent(names[name], token=swarm.token_of(organizer), threads=threads, **more)
    with slowed(swarm.processes[names["slow"]].pid):
        swarm.wait_finished()
    final = swarm.export(target)
    ledger, committed = swarm.books()
    assert ledger == committed > 0
    digests = {name: swarm.digests(agent) for name, agent in names.items()}
    swarm.end_agents()
    return final, digests


def distance(export: Path, final: Path, reference: Callable[[Path], dict[str, torch.Tensor]] = main) -> float:
    """Return the largest difference between a replayed weight and the same weight in the snapshot."""
    theirs = weights_of(final)
    return max(float((weight - theirs[name]).abs().max()) for name, weight in reference(export).items())


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_uneven_machines_make_what_one_would(
    site: tuple[Swarm, Visitor], tmp_path: Path, english: str, optimizer: str
) -> None:
    torch.set_num_threads(1)
    recipe = {"optimizer": optimizer, "learning_rate": RATES[optimizer]}  # epsilon is the recipe's default, 1e-6
    export = tmp_path / "export"
    final, digests = train(site, export, english[:LESS_THAN_IS_TRAINED], steps=STEPS, **recipe)
    records = [to_json(from_lines(path.read_bytes())) for path in (export / "records").iterdir()]
    assert all(record["exact"] for record in records)
    epochs = {unit[0] for record in records for part in record["contributions"] for unit in part["units"]}
    assert epochs >= {0, 1}, "the shards' last samples, which are short, are among them"
    assert len({tuple(len(c["units"]) for c in record["contributions"]) for record in records}) > 1, "all even"
    moved = distance(export, final)
    print(f"{optimizer}: max |dw| = {moved:.2e} after {STEPS} steps")
    assert moved <= BOUNDS[optimizer]
    agree(digests, STEPS)
    # A control: if every machine had the same weight, whatever its tokens, the difference would be far beyond the
    # bound.
    assert distance(unweighted(export, tmp_path / "unweighted"), final) > 10 * BOUNDS[optimizer]


def test_a_masked_language_model_is_what_one_machine_would_make(
    site: tuple[Swarm, Visitor], tmp_path: Path, english: str
) -> None:
    """The independent reference program itself draws masks, cuts and swaps, word by word."""
    torch.set_num_threads(1)
    export = tmp_path / "export"
    final, digests = train(site, export, english[:LESS_THAN_IS_TRAINED], steps=STEPS, **MASKED)
    records = [to_json(from_lines(path.read_bytes())) for path in (export / "records").iterdir()]
    assert all(record["exact"] for record in records)
    moved = distance(export, final, masked_reference.main)
    print(f"masked_lm: max |dw| = {moved:.2e} after {STEPS} steps")
    assert moved <= BOUNDS["lamb"]
    agree(digests, STEPS)
    losses = [record["loss"] for record in sorted(records, key=lambda record: int(record["step"]))]
    assert losses[-1] < losses[0]
    other = unweighted(export, tmp_path / "unweighted")
    assert distance(other, final, masked_reference.main) > 10 * BOUNDS["lamb"]


@pytest.mark.parametrize("objective", IMAGES)
def test_a_model_of_images_is_what_one_machine_would_make(
    site: tuple[Swarm, Visitor], tmp_path: Path, objective: str
) -> None:
    """The independent reference program itself crops, mirrors and colours images, pixel by pixel."""
    torch.set_num_threads(1)
    export, tar = tmp_path / "export", ("digits.tar", digits_tar())
    recipe = {"objective": objective, **OF_IMAGES, **IMAGES[objective]}
    final, digests = train(site, export, tar, steps=IMAGE_STEPS, **recipe)
    moved = distance(export, final, image_reference.main)
    print(f"{objective}: max |dw| = {moved:.2e} after {IMAGE_STEPS} steps")
    assert moved <= IMAGE_BOUND[objective]
    agree(digests, IMAGE_STEPS)


def test_agents_send_log_and_store_only_adapters(site: tuple[Swarm, Visitor], tmp_path: Path, english: str) -> None:
    """The release is a plain model with the adapters merged in."""
    brought, export = model_folder(tmp_path / "base"), tmp_path / "export"
    archive = zipped(brought)
    model = (archive.name, archive.read_bytes())
    final, digests = train(site, export, english[:LESS_THAN_IS_TRAINED], model, steps=STEPS, **ADAPTERS)
    agree(digests, STEPS)
    weights = weights_of(final)
    assert all("lora" in name for name in weights)
    adapters = sum(weight.numel() for weight in weights.values())
    heads = [from_lines(path.read_bytes()) for path in (export / "records").iterdir()]
    assert {to_json(head)["elements"] for head in heads} == {adapters}
    assert adapters < (brought / "model.safetensors").stat().st_size / 4 / 3
    assert final.stat().st_size < 3 * 4 * adapters + 64 * 1024
    released = site[0].released(tmp_path / "released")
    plain = AutoModelForCausalLM.from_pretrained(released)
    assert not any("lora" in name for name, _ in plain.named_parameters())


def agree(digests: dict[str, dict[int, str]], steps: int) -> None:
    """Require that at least two machines completed each step, and that all those that did have equal digests for it."""
    for step in range(1, steps + 1):
        seen = {name: of[step] for name, of in digests.items() if step in of}
        assert len(seen) >= 2, f"step {step} was seen by {sorted(seen)}"
        assert len(set(seen.values())) == 1, f"step {step}: {seen}"


def unweighted(export: Path, target: Path) -> Path:
    """Copy the run, keeping only one unit of the machine with the most units. This changes only the weights in the
    means.
    """
    shutil.copytree(export, target)
    for path in (target / "records").iterdir():
        head, signature, parts, _ = path.read_bytes().split(b"\n")
        contributions = json.loads(parts)
        most = max(contributions, key=lambda c: len(c["units"]))
        most["units"] = most["units"][:1]
        path.write_bytes(b"\n".join((head, signature, json.dumps(contributions).encode(), b"")))
    return target


def test_replicas_agree_on_lossy_bytes(site: tuple[Swarm, Visitor], tmp_path: Path, english: str) -> None:
    lossy = {"codec_up": "int8", "codec_down": "int8"}
    _, digests = train(site, tmp_path / "export", english, steps=LOSSY_STEPS, **lossy)
    agree(digests, LOSSY_STEPS)


def test_what_overlaps_the_rounds_is_made_again_from_the_records(
    site: tuple[Swarm, Visitor], tmp_path: Path, english: str
) -> None:
    """Steps that overlap the rounds are not exact, but their records name the units that were computed one step
    earlier."""
    export = tmp_path / "export"
    final, digests = train(site, export, english[:LESS_THAN_IS_TRAINED], steps=STEPS, staleness="1")
    records = [to_json(from_lines(path.read_bytes())) for path in (export / "records").iterdir()]
    stale = {record["step"] for record in records if any(part.get("stale") for part in record["contributions"])}
    assert len(stale) > STEPS // 2
    assert stale == {record["step"] for record in records if not record["exact"]}
    losses = [record["loss"] for record in sorted(records, key=lambda record: int(record["step"]))]
    assert losses[-1] < losses[0]
    assert distance(export, final) <= BOUNDS["lamb"]
    agree(digests, STEPS)


def test_a_skipped_digest_is_seen() -> None:
    digests = {name: {step: f"{step:016x}" for step in range(1, STEPS + 1)} for name in ("quick", "old", "slow")}
    agree(digests, STEPS)
    digests["old"][7] = "f" * 16
    with pytest.raises(AssertionError, match="step 7"):
        agree(digests, STEPS)
    del digests["old"][7], digests["slow"][7]
    with pytest.raises(AssertionError, match="step 7 was seen by"):
        agree(digests, STEPS)
