"""LoRA adapters: what is trained and what stays fixed, a comparison with peft alone, and their release."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import peft
import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer_agent.machine.preflight import needs_of
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import ModelFile, Optimizer, OutOfBounds, checked
from peer_agent.protocol.sampling import order_of
from peer_agent.publishing.card import CardFacts
from peer_agent.publishing.release import make_release, model_from
from peer_agent.recipes.finetune_lora import Base, FinetuneLoRA
from peer_agent.recipes.finetune_lora.preparation import AdaptedText
from peer_agent.recipes.finetune_lora.training import base_model, load_shard
from peer_agent.site_work.brought_model import prepare
from peer_agent.site_work.evaluate import evaluate
from peer_agent.site_work.replay import Logs, make_initial, replay
from peer_agent.training import loop, precision
from peer_agent.training import replica as replica_module
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.recipes.finetune_lora.small_base import model_folder, text_of, zipped
from tests.training.commits import RUN, commit, take_units, weighted_mean

STEPS, BATCH = 6, 8
RECIPE = FinetuneLoRA(
    rank=4,
    alpha=8.0,
    matrices="all",
    context=32,
    target_batch=BATCH,
    micro_batch=4,
    target_steps=STEPS,
    optimizer=Optimizer(
        name="adamw", learning_rate=0.01, beta2=0.999, epsilon=1e-8, weight_decay=0.0, clip_norm=0.0,
        warmup_steps=0, decay="constant",
    ),
)  # fmt: skip


class Adapted:
    """A base model of one family, a text prepared for it, and the recipe that fits both."""

    def __init__(self, folder: Path, family: str) -> None:
        self.folder, self.released = folder, model_folder(folder, family)
        self.out = folder / "out"
        made = prepare(text_of(folder), self.out, AdaptedText(), base=zipped(self.released))
        self.recipe = RECIPE.fitted(msgspec.to_builtins(made))
        self.files = self.out / "model"
        (digest, *_) = [shard.digest for shard in made.shards]
        self.shard = load_shard(self.out / "shards" / f"{digest}.safetensors")

    def replica(self) -> Replica:
        return Replica(self.recipe, files=self.files)


@pytest.fixture(scope="module", params=["llama", "gpt2", "qwen3"])
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("llama"), "llama")


def units(step: int) -> list[Unit]:
    """Return the two units of a step, each with four samples."""
    return [Unit(0, 0, start, start + 4) for start in range(step * BATCH, (step + 1) * BATCH, 4)]


def trained(adapted: Adapted) -> Replica:
    trainer = Trainer(adapted.replica(), RUN, [adapted.shard])
    for step in range(STEPS):
        takings = [take_units(trainer, [unit]) for unit in units(step)]
        commit(trainer.replica, weighted_mean(takings), takings)
    return trainer.replica


def test_adapters_alone_are_in_the_state(adapted: Adapted) -> None:
    replica = adapted.replica()
    assert all(".lora_" in piece.name for piece in replica.layout.pieces)
    assert replica.layout.elements == adapted.recipe.parameters()
    whole = sum(parameter.numel() for parameter in replica.model.parameters())
    assert adapted.recipe.fixed_parameters() == pytest.approx(whole - replica.layout.elements, rel=0.02)


def test_only_attention_is_adapted_where_that_is_asked(llama: Adapted) -> None:
    recipe = replace(llama.recipe, matrices="attention")
    replica = Replica(recipe, files=llama.files)
    assert replica.layout.elements == recipe.parameters() < llama.recipe.parameters()
    assert not any("mlp" in piece.name for piece in replica.layout.pieces)


def test_fresh_adapters_change_nothing(adapted: Adapted) -> None:
    ids = torch.arange(20)[None]
    ours = adapted.replica().model(input_ids=ids).logits
    plain: Any = AutoModelForCausalLM.from_pretrained(adapted.released)
    theirs = plain(input_ids=ids).logits
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_fresh_state_is_reproducible_and_depends_on_the_seed(llama: Adapted) -> None:
    assert llama.replica().digest() == llama.replica().digest()
    other = Replica(replace(llama.recipe, seed=5), files=llama.files)
    assert other.digest() != llama.replica().digest()


def test_the_base_stays_as_it_is(adapted: Adapted) -> None:
    replica = trained(adapted)
    assert float((replica.parameters - adapted.replica().parameters).abs().max()) > 0.01
    before = dict(base_model(adapted.recipe, adapted.files).named_parameters())
    kept = {name: part for name, part in replica.model.named_parameters() if ".lora_" not in name}
    assert len(kept) == len(before)
    for name, part in kept.items():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert torch.equal(part, before[plain]), name


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_beside_peft_alone(adapted: Adapted) -> None:
    """The same samples and steps run on peft's model with torch's AdamW. Losses and parameters are compared."""
    model: Any = AutoModelForCausalLM.from_pretrained(adapted.released)
    names = list(adapted.recipe.adapted)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=8, lora_dropout=0.0, target_modules=names,
        fan_in_fan_out=adapted.recipe.base.family == "gpt2",
    )  # fmt: skip
    model = peft.get_peft_model(model, settings)
    fresh = dict(adapted.replica().model.named_parameters())
    learning = {name: part for name, part in model.named_parameters() if part.requires_grad}
    with torch.no_grad():
        for name, part in learning.items():
            part.copy_(fresh[name])
    optimizer = torch.optim.AdamW(learning.values(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses, order = [], order_of(RUN, 0, 0, adapted.recipe.samples_in(len(adapted.shard)))
    for step in range(STEPS):
        at = order[step * BATCH : (step + 1) * BATCH]
        rows = [adapted.shard[32 * sample : 32 * (sample + 1)] for sample in at]
        assert all(len(row) == 32 for row in rows)
        ids = torch.from_numpy(np.stack(rows).astype(np.int64))
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    ours = {piece.name: piece.of(trained(adapted).parameters) for piece in adapted.replica().layout.pieces}
    assert losses[-1] < losses[0]
    assert ours.keys() == learning.keys()
    for name, part in learning.items():
        assert float((ours[name] - part.detach()).abs().max()) < 1e-4, name


def test_a_release_is_a_plain_model_with_the_adapters_in_it(adapted: Adapted, tmp_path: Path) -> None:
    replica = trained(adapted)
    replica.save(tmp_path / "state.safetensors")
    facts = CardFacts(slug="adapted", title="Adapted", steps=STEPS, loss=1.0)
    released = make_release(
        recipe=adapted.recipe,
        snapshot=tmp_path / "state.safetensors",
        data=adapted.out,
        out=tmp_path / "out",
        facts=facts,
    )
    assert released.sample
    ids = torch.arange(20)[None]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not any("lora" in name for name, _ in plain.named_parameters())
    theirs, ours = plain(input_ids=ids).logits, model_from(
        adapted.recipe, tmp_path / "state.safetensors", adapted.files
    )(input_ids=ids).logits  # fmt: skip
    assert torch.allclose(theirs, ours, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("Many hands")["input_ids"]


def test_what_the_site_does_with_it_finds_the_base(llama: Adapted, tmp_path: Path) -> None:
    made = make_initial(llama.recipe, tmp_path, llama.files)
    assert (made.elements, made.state_digest) == (llama.recipe.parameters(), llama.replica().digest())
    snapshot, heldout = tmp_path / f"{made.file}.safetensors", llama.out / "heldout.safetensors"
    found = evaluate(recipe=llama.recipe, snapshot=snapshot, heldout=heldout, files=llama.files)
    assert found.loss == pytest.approx(math.log(llama.recipe.base.vocab), rel=0.05), "nobody has trained it"
    (tmp_path / "records").mkdir()
    logs = Logs()
    again = replay(
        recipe=llama.recipe, snapshot=snapshot, records=tmp_path / "records", logs=logs, site_key=b"", out=tmp_path,
        begins=made.file, files=llama.files,
    )  # fmt: skip
    assert again.file == made.file


def test_a_machine_needs_room_for_the_base(llama: Adapted) -> None:
    with_base, without = (
        needs_of(recipe, recipe.parameters(), at_once=1, on_gpu=False).memory
        for recipe in (llama.recipe, replace(llama.recipe, base=replace(llama.recipe.base, vocab=2)))
    )
    assert with_base - without >= 2 * 4 * 2 * (llama.recipe.base.vocab - 2) * llama.recipe.base.width


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_mixed_run_on_a_gpu_keeps_only_the_base_in_16_bits(
    adapted: Adapted, half: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base model is exact in 16 bits, so gradients equal those of autocast over an fp32 base, bit for bit."""
    monkeypatch.setattr(loop, "half_of", lambda *_: half)
    monkeypatch.setattr(loop, "widen_attention", lambda _: None)  # as on a GPU
    wide = Trainer(adapted.replica(), RUN, [adapted.shard])
    for name, part in wide.replica.model.named_parameters():
        if ".lora_" not in name and part.dim() > 1:
            part.data = part.data.to(half).float()
    monkeypatch.setattr(replica_module, "kept_in", lambda *_: half)
    narrow = Trainer(adapted.replica(), RUN, [adapted.shard])
    assert {part.dtype for name, part in narrow.replica.model.named_parameters() if ".lora_" in name} == {torch.float32}
    fixed = [part for name, part in narrow.replica.model.named_parameters() if ".lora_" not in name]
    assert {part.dtype for part in fixed if part.dim() > 1} == {half}
    assert {part.dtype for part in fixed if part.dim() == 1} == {torch.float32}
    assert narrow.replica.parameters.dtype == torch.float32
    assert narrow.replica.state_hash() == wide.replica.state_hash()
    found, expected = take_units(narrow, units(0)), take_units(wide, units(0))
    np.testing.assert_array_equal(found.gradient_sum, expected.gradient_sum)
    assert found.loss_sum == expected.loss_sum
    assert narrow.evaluate(adapted.shard[:320]) == wide.evaluate(adapted.shard[:320])


def test_a_gpu_of_a_mixed_run_needs_half_the_room_for_the_base() -> None:
    base = replace(Base(), layers=32, width=4096, heads=32, kv_heads=8, head=128, inside=14336, vocab=128_000)
    recipe = replace(FinetuneLoRA(), base=base)
    wide, narrow = (
        needs_of(each, each.parameters(), at_once=1, on_gpu=True)
        for each in (recipe, replace(recipe, precision="mixed"))
    )
    assert wide.gpu - narrow.gpu == 2 * recipe.fixed_parameters() > 13e9
    assert wide.memory == narrow.memory, "it is read as it lies there"
    on_cpu = [needs_of(replace(recipe, precision=how), 1, at_once=1, on_gpu=False) for how in ("fp32", "mixed")]
    assert on_cpu[0] == on_cpu[1]


def test_a_processor_keeps_the_base_as_it_is(llama: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "is_faster_in_bf16", lambda: True)
    replica = Replica(replace(llama.recipe, precision="mixed"), files=llama.files)
    assert {part.dtype for part in replica.model.parameters()} == {torch.float32}


def test_what_the_recipe_says_of_the_base_binds(llama: Adapted, tmp_path: Path) -> None:
    with pytest.raises(OutOfBounds, match="the base takes 48 tokens"):
        checked(replace(llama.recipe, context=64))
    other = replace(llama.recipe, base=replace(llama.recipe.base, file=ModelFile("a" * 64, 5)))
    with pytest.raises(Problem, match="E111"):
        Replica(other, files=llama.files)
    (tmp_path / f"{'a' * 64}.safetensors").write_bytes(b"no tensors")
    with pytest.raises(Problem, match="E111"):
        Replica(other, files=tmp_path)


def test_a_draft_without_a_base_has_numbers_all_the_same() -> None:
    recipe = FinetuneLoRA()
    assert recipe.files() == ()
    assert recipe.base == Base()
    assert recipe.parameters() > 0
    assert "Llama" in recipe.summary()


@pytest.mark.parametrize("strange", ["one more", "one less", "another shape"])
def test_a_base_of_which_the_file_says_something_else_is_refused(llama: Adapted, tmp_path: Path, strange: str) -> None:
    assert llama.recipe.base.file is not None
    name = f"{llama.recipe.base.file.digest}.safetensors"
    with safe_open(llama.files / name, framework="pt") as file:
        tensors, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    one = next(key for key in tensors if "mlp" in key)
    if strange == "one less":
        del tensors[one]
    else:
        # a single value, which torch could broadcast to the whole tensor
        tensors["more" if strange == "one more" else one] = torch.ones(1)
    save_file(tensors, tmp_path / name, metadata)
    with pytest.raises(Problem, match="E111"):
        base_model(llama.recipe, tmp_path)


LARGE = """
import json, re, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from peer_agent.recipes.finetune_lora import Base, FinetuneLoRA
from peer_agent.recipes.finetune_lora.training import CONFIG, base_model, empty_model
from peer_agent.protocol.recipe import ModelFile

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder = Path(sys.argv[1])
path = folder / ("0" * 64 + ".safetensors")
if len(sys.argv) > 2:
    shape = {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16}
    config = LlamaConfig(**shape, num_attention_heads=2, tie_word_embeddings=True).to_dict()
    model = empty_model(config)
    tensors = {name: tensor.bfloat16() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, path, metadata={CONFIG: json.dumps(config)})
else:
    before = peak()
    recipe = FinetuneLoRA(base=Base(file=ModelFile(digest="0" * 64, size=path.stat().st_size)))
    model = base_model(recipe, folder)
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
    print((peak() - before) / (4 * sum(tensor.numel() for tensor in model.parameters())))
"""


@pytest.mark.check
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told there alone")
def test_a_base_is_widened_tensor_by_tensor(tmp_path: Path) -> None:
    for more in (["write"], []):
        command = [sys.executable, "-c", LARGE, str(tmp_path), *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    assert 1.0 < float(done.stdout) < 1.8, "the model and the file; not a second model"
