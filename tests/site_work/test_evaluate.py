"""The held-out loss, measured by the site's child process and compared with torch alone."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.numpy import save_file

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, encode_recipe
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import Tokens
from peer_agent.site_work import evaluate as module
from peer_agent.site_work.evaluate import MOST_UNITS, evaluate
from peer_agent.site_work.prepare_text import prepare
from peer_agent.training.replica import Replica
from tests.site_work.test_main import facts_of, run
from tests.training.commits import small_recipe, some_shards

RECIPE = small_recipe()


def written(tokens: Tokens, folder: Path) -> Path:
    path = folder / "heldout.safetensors"
    save_file({"tokens": tokens}, path)
    return path


def snapshot_of(recipe: Recipe, folder: Path, *, fill: float | None = None) -> Path:
    replica = Replica(recipe)
    with torch.no_grad():
        replica.parameters.mul_(1.5) if fill is None else replica.parameters.fill_(fill)
    replica.save(folder / "state.safetensors")
    return folder / "state.safetensors"


def by_torch_alone(recipe: CausalLM, tokens: Tokens) -> float:
    """Return the mean loss over all predicted tokens, computed sample by sample from the model's own logits."""
    replica = Replica(recipe)
    with torch.no_grad():
        replica.parameters.mul_(1.5)
    losses: list[float] = []
    context = recipe.model.context
    for start in range(0, len(tokens), context):
        sample = torch.from_numpy(tokens[start : start + context].astype(np.int64))
        with torch.no_grad():
            chances = torch.log_softmax(replica.model(input_ids=sample[None]).logits[0].double(), dim=-1)
        losses += [-float(chances[place, sample[place + 1]]) for place in range(len(sample) - 1)]
    return sum(losses) / len(losses)


def test_the_childs_figure_is_what_torch_computes_directly(tmp_path: Path) -> None:
    tokens = some_shards((0, 1003))[1]  # the last sample is shorter than the others
    (tmp_path / "recipe.json").write_bytes(encode_recipe(RECIPE))
    paths = tmp_path / "recipe.json", snapshot_of(RECIPE, tmp_path), written(tokens, tmp_path)
    found = facts_of(run("evaluate", *paths))
    loss = by_torch_alone(RECIPE, tokens)
    perplexity = pytest.approx(math.exp(loss), rel=1e-4)
    assert found == {
        "loss": pytest.approx(loss, rel=1e-5), "units": 1003 - 42, "figures": {"perplexity": perplexity},
        "written": [],
    }  # fmt: skip


@pytest.mark.check
def test_it_continues_prompts_the_same_each_time(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Many hands make light work. " * 300)
    prepare(text, tmp_path / "out", TextPreparation(vocab=300))
    recipe = replace(RECIPE, vocab=300)
    (tmp_path / "recipe.json").write_bytes(encode_recipe(recipe))
    paths = tmp_path / "recipe.json", snapshot_of(recipe, tmp_path), written(some_shards((0, 300))[1] % 300, tmp_path)
    asked: list[str | Path] = [
        "--data",
        tmp_path / "out",
        "--prompt=--Many hands",
        "--prompt=",
        f"--prompt={'work ' * 500}",
    ]
    first, second = (facts_of(run("evaluate", *paths, *asked))["written"] for _ in range(2))
    assert first == second
    assert len(first) == 3
    assert all(isinstance(text, str) and text for text in first)
    assert not first[0].startswith("--Many"), "the prompt is not repeated"


def test_a_model_that_cannot_write_has_its_loss(tmp_path: Path) -> None:
    tokens = some_shards((0, 300))[1]
    found = evaluate(
        recipe=RECIPE,
        snapshot=snapshot_of(RECIPE, tmp_path),
        heldout=written(tokens, tmp_path),
        data=tmp_path / "nowhere",
        prompts=["Many"],
    )
    assert math.isfinite(found.loss)
    assert found.written == []


def test_a_long_text_is_read_up_to_a_bound(tmp_path: Path) -> None:
    tokens = some_shards((0, 1003))[1]
    snapshot, heldout = snapshot_of(RECIPE, tmp_path), written(tokens, tmp_path)
    found = evaluate(recipe=RECIPE, snapshot=snapshot, heldout=heldout, most=150)
    assert found.units == 8 * 23, "micro-batches are whole"
    assert found.loss == pytest.approx(by_torch_alone(RECIPE, tokens[: 8 * 24]), rel=1e-5)
    assert MOST_UNITS == 200_000


def test_a_large_model_is_judged_by_fewer_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample count is halved until measuring fits into the time limit, down to one micro-batch."""
    heldout, snapshot = written(some_shards((0, 1003))[1], tmp_path), snapshot_of(RECIPE, tmp_path)
    judged: list[int] = []

    def figures_of(*given: Any) -> dict[str, float]:
        judged.append(given[-1])
        return {}

    monkeypatch.setattr("peer_agent.recipes.causal_lm.training.figures_of", figures_of)
    whole = evaluate(recipe=RECIPE, snapshot=snapshot, heldout=heldout)
    monkeypatch.setattr(module, "_seconds", lambda _: 100.0)  # seconds for four of 42 samples
    half = evaluate(recipe=RECIPE, snapshot=snapshot, heldout=heldout)
    monkeypatch.setattr(module, "_seconds", lambda _: 1e6)
    least = evaluate(recipe=RECIPE, snapshot=snapshot, heldout=heldout)
    assert judged == [42, 21, 2]
    assert (whole.units, half.units, least.units) == (961, 24 * 23, 4 * 23)


def test_a_text_without_a_predicted_token_has_a_number(tmp_path: Path) -> None:
    heldout = written(some_shards()[0][:1], tmp_path)
    with pytest.raises(Problem, match=r"E360.*too little"):
        evaluate(recipe=RECIPE, snapshot=snapshot_of(RECIPE, tmp_path), heldout=heldout)


def test_a_model_that_has_diverged_has_no_figure(tmp_path: Path) -> None:
    snapshot, heldout = snapshot_of(RECIPE, tmp_path, fill=math.nan), written(some_shards()[0][:100], tmp_path)
    with pytest.raises(Problem, match=r"E361.*nan"):
        evaluate(recipe=RECIPE, snapshot=snapshot, heldout=heldout)


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    heldout = written(some_shards()[0][:100], tmp_path)
    with pytest.raises(Problem, match="E310"):
        evaluate(recipe=RECIPE, snapshot=snapshot_of(small_recipe("llama"), tmp_path), heldout=heldout)
