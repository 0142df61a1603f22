"""Replay of an adapter run's committed units with peft alone, using the base model's folder (see `reference`)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.end_to_end.rig.reference import add_gradient, move, samples_of, weights_of

LINEAR = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


class Adapters:
    def __init__(self, brought: Path, r: Any) -> None:
        settings = peft.LoraConfig(
            task_type="CAUSAL_LM", r=r["rank"], lora_alpha=r["alpha"], target_modules=LINEAR[r["matrices"]]
        )
        self.model: Any = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(brought), settings)

    def __call__(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids)

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return (p for _, p in self.named_parameters())


def replayed(folder: Path, brought: Path) -> tuple[dict[str, torch.Tensor], list[float]]:
    r, shards = (json.loads((folder / name).read_text()) for name in ("recipe.json", "shards.json"))
    model, fresh = Adapters(brought, r), weights_of(folder / "step0.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(fresh[name])
    tokens = [load_file(folder / f"{shard['digest']}.safetensors")["tokens"].long() for shard in shards]
    lines = [path.read_bytes().split(b"\n") for path in (folder / "records").iterdir()]
    records = [json.loads(head) | {"contributions": json.loads(parts)} for head, _, parts, *_ in lines]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    losses = []
    for record in sorted(records, key=lambda record: int(record["index"])):
        samples = samples_of(record, tokens, r["context"], 0)
        model.model.zero_grad()
        losses.append(loss_of(model, samples))
        add_gradient(model, samples)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, sum(len(sample) - 1 for sample in samples))
        torch.nn.utils.clip_grad_norm_(model.parameters(), r["optimizer"]["clip_norm"] or float("inf"))
        move(model, moments, record["step"], r["optimizer"], r["target_steps"])
    return {name: p.detach() for name, p in model.named_parameters()}, losses


@torch.no_grad()
def loss_of(model: Adapters, samples: list[torch.Tensor]) -> float:
    summed = 0.0
    for sample in samples:
        logits = model(sample[None]).logits[0, :-1]
        summed += float(torch.nn.functional.cross_entropy(logits, sample[1:], reduction="sum"))
    return summed / sum(len(sample) - 1 for sample in samples)
