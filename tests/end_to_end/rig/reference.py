"""The committed units of a run replayed on one process in one plain way. It shares no line with peer_agent.

FOLDER: recipe.json, shards.json ([{"digest"}]), <digest>.safetensors, step0.safetensors, records/* (as sealed)."""

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
    size |= {"vocab_size": r["vocab"], **dict.fromkeys(zero, 0)}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(m["family"], **size))  # type: ignore[no-untyped-call]


def weights_of(snapshot: Path) -> dict[str, torch.Tensor]:
    with safe_open(snapshot, "pt") as file:
        flat, pieces = file.get_tensor("parameters"), json.loads(file.metadata()["layout"])["pieces"]
    return {name: flat[start : start + math.prod(shape)].view(shape) for name, shape, start in pieces}


def samples_of(record: Any, shards: list[torch.Tensor], context: int) -> list[torch.Tensor]:
    found = []
    for epoch, shard, start, stop in (unit for c in record["contributions"] for unit in c["units"]):
        tokens, key = shards[shard], hashlib.sha256(f"{record['run']}/{epoch}/{shard}".encode()).digest()
        draws = np.random.Philox(key=np.frombuffer(key[:16], "<u8")).random_raw(-(-(len(tokens) - 1) // context))
        found += [tokens[context * s :][:context] for s in np.argsort(draws, kind="stable")[start:stop].tolist()]
    return found


def set_gradient(model: Any, samples: list[torch.Tensor], clip_norm: float) -> None:
    model.zero_grad()
    for length in sorted({len(sample) for sample in samples}):
        for part in torch.split(torch.stack([sample for sample in samples if len(sample) == length]), 64):
            logits = model(part).logits[:, :-1].flatten(0, 1)
            torch.autograd.backward(torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
    torch._foreach_div_([p.grad for p in model.parameters()], sum(len(sample) - 1 for sample in samples))
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)


@torch.no_grad()
def move(model: Any, moments: Any, step: int, o: Any, last: int) -> None:
    warm, done = o["warmup_steps"], min((step - o["warmup_steps"]) / max(last - o["warmup_steps"], 1), 1)
    decay = {"constant": 0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}[o["decay"]]
    rate = o["learning_rate"] * (step / warm if step <= warm else 1 - (1 - o["final_ratio"]) * decay)
    for p, (m, v) in zip(model.parameters(), moments, strict=True):
        m.lerp_(p.grad, 1 - o["beta1"])
        v.lerp_(p.grad.square(), 1 - o["beta2"])
        u = m / (1 - o["beta1"] ** step) / ((v / (1 - o["beta2"] ** step)).sqrt() + o["epsilon"])
        u = u + (o["weight_decay"] * p if p.dim() > 1 else 0)
        p.sub_(u * rate * (p.norm() / u.norm() if o["name"] == "lamb" and p.norm() > 0 and u.norm() > 0 else 1))


def main(folder: Path) -> dict[str, torch.Tensor]:
    r, shards = (json.loads((folder / name).read_text()) for name in ("recipe.json", "shards.json"))
    (model := model_of(r)).load_state_dict(weights_of(folder / "step0.safetensors"), strict=False)
    tokens = [load_file(folder / f"{shard['digest']}.safetensors")["tokens"].long() for shard in shards]
    lines = [path.read_bytes().split(b"\n") for path in (folder / "records").iterdir()]
    records = [json.loads(head) | {"contributions": json.loads(parts)} for head, _, parts, *_ in lines]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for record in sorted(records, key=lambda record: int(record["index"])):
        set_gradient(model, samples_of(record, tokens, r["model"]["context"]), r["optimizer"]["clip_norm"])
        move(model, moments, record["step"], r["optimizer"], r["target_steps"])
    print("steps not exact:", sorted(record["step"] for record in records if not record["exact"]))
    return {name: p.detach() for name, p in model.named_parameters()}


if __name__ == "__main__":
    theirs = weights_of(Path(sys.argv[2]))
    print("max |Δw|:", max(float((w - theirs[name]).abs().max()) for name, w in main(Path(sys.argv[1])).items()))
