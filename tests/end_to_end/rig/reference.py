"""A plain replay of a run's committed units in one process, without any code from peer_agent.

FOLDER: recipe.json, shards.json ([{"digest"}]), <digest>.safetensors, step0.safetensors, records/* (as sealed).
"""

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM


def model_of(r: Any) -> Any:
    m, zero = r["model"], ("resid_pdrop", "embd_pdrop", "attn_pdrop", "bos_token_id", "eos_token_id")
    size = {"hidden_size": m["width"], "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"]}
    size |= {"max_position_embeddings": m["context"], "intermediate_size": -(-m["width"] // 3) * 8}
    size |= {"vocab_size": r["vocab"], "num_key_value_heads": m["kv_heads"] or m["heads"], **dict.fromkeys(zero, 0)}
    size |= {"head_dim": m["width"] // m["heads"], "tie_word_embeddings": m["family"] != "llama"}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(m["family"], **size))  # type: ignore[no-untyped-call]


def weights_of(snapshot: Path) -> dict[str, torch.Tensor]:
    with safe_open(snapshot, "pt") as file:
        flat, pieces = file.get_tensor("parameters"), json.loads(file.metadata()["layout"])["pieces"]
    return {name: flat[start : start + math.prod(shape)].view(shape) for name, shape, start in pieces}


def samples_of(record: Any, shards: list[torch.Tensor], context: int, age: int) -> list[torch.Tensor]:
    """Return the samples in this record that were computed `age` steps earlier."""
    found, parts = [], record["contributions"]
    for epoch, shard, start, stop in (u for c in parts for u in c["units"] if (u in c.get("stale", ())) == bool(age)):
        tokens, key = shards[shard], hashlib.sha256(f"{record['run']}/{epoch}/{shard}".encode()).digest()
        draws = np.random.Philox(key=np.frombuffer(key[:16], "<u8")).random_raw(-(-(len(tokens) - 1) // context))
        found += [tokens[context * s :][:context] for s in np.argsort(draws, kind="stable")[start:stop].tolist()]
    return found


def add_gradient(model: Any, samples: list[torch.Tensor]) -> None:
    for length in sorted({len(sample) for sample in samples}):
        for part in torch.split(torch.stack([sample for sample in samples if len(sample) == length]), 64):
            logits = model(part).logits[:, :-1].flatten(0, 1)
            torch.autograd.backward(torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))


def set_gradient(model: Any, before: list[torch.Tensor], samples: list[list[torch.Tensor]], clip_norm: float) -> None:
    model.zero_grad()
    add_gradient(model, samples[0])
    swap(model, before)
    add_gradient(model, samples[1])
    swap(model, before)
    tokens = sum(len(sample) - 1 for part in samples for sample in part)
    torch._foreach_div_([p.grad for p in model.parameters()], tokens)
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)


def swap(model: Any, other: list[torch.Tensor]) -> None:
    for place, p in enumerate(model.parameters()):
        p.data, other[place] = other[place], p.data


@torch.no_grad()
def move(model: Any, moments: Any, step: int, o: Any, last: int) -> None:
    warm, done = o["warmup_steps"], min((step - o["warmup_steps"]) / max(last - o["warmup_steps"], 1), 1)
    decay = {"constant": 0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}[o["decay"]]
    rate = o["learning_rate"] * (step / warm if step <= warm else 1 - (1 - o["final_ratio"]) * decay)
    for p, (m, v) in zip(model.parameters(), moments, strict=True):
        if o["name"] in ("sgd", "larc"):
            move_by_gradient(p, m, rate, o)
            continue
        m.lerp_(p.grad, 1 - o["beta1"])
        v.lerp_(p.grad.square(), 1 - o["beta2"])
        u = m / (1 - o["beta1"] ** step) / ((v / (1 - o["beta2"] ** step)).sqrt() + o["epsilon"])
        u = u + (o["weight_decay"] * p if p.dim() > 1 else 0)
        p.sub_(u * rate * (p.norm() / u.norm() if o["name"] == "lamb" and p.norm() > 0 and u.norm() > 0 else 1))


def move_by_gradient(p: Any, m: torch.Tensor, rate: float, o: Any) -> None:
    decay = o["weight_decay"] if p.dim() > 1 else 0
    g = p.grad + decay * p
    if o["name"] == "larc" and p.norm() > 0 and p.grad.norm() > 0:
        g = g * 0.001 * p.norm() / (p.grad.norm() + decay * p.norm() + o["epsilon"])
    p.sub_(rate * m.mul_(o["beta1"]).add_(g))


def main(folder: Path) -> dict[str, torch.Tensor]:
    r, shards = (json.loads((folder / name).read_text()) for name in ("recipe.json", "shards.json"))
    (model := model_of(r)).load_state_dict(weights_of(folder / "step0.safetensors"), strict=False)
    tokens = [load_file(folder / f"{shard['digest']}.safetensors")["tokens"].long() for shard in shards]
    lines = [path.read_bytes().split(b"\n") for path in (folder / "records").iterdir()]
    records = [json.loads(head) | {"contributions": json.loads(parts)} for head, _, parts, *_ in lines]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    before = [p.detach().clone() for p in model.parameters()]
    for record in sorted(records, key=lambda record: int(record["index"])):
        samples = [samples_of(record, tokens, r["model"]["context"], age) for age in (0, 1)]
        set_gradient(model, before, samples, r["optimizer"]["clip_norm"])
        before = [p.detach().clone() for p in model.parameters()]
        move(model, moments, record["step"], r["optimizer"], r["target_steps"])
    print("steps not exact:", sorted(record["step"] for record in records if not record["exact"]))
    return {name: p.detach() for name, p in model.named_parameters()}


if __name__ == "__main__":
    theirs = weights_of(Path(sys.argv[2]))
    print("max |Δw|:", max(float((w - theirs[name]).abs().max()) for name, w in main(Path(sys.argv[1])).items()))
