"""Like `reference.py`, but for a masked language model, and without any code from peer_agent. See there for FOLDER."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AlbertConfig, AlbertForPreTraining

from tests.end_to_end.rig.reference import move, weights_of

CLS, SEP, MASK, WORDS_FROM = 2, 3, 4, 5
# Ids, masked tokens by position, start of the second part, and whether the parts are swapped.
Row = tuple[list[int], dict[int, int], int, bool]


def model_of(r: Any) -> Any:
    m, zero = r["model"], ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    size = {"hidden_size": m["width"], "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"]}
    size |= {"max_position_embeddings": m["context"], "intermediate_size": 4 * m["width"], "vocab_size": r["vocab"]}
    size |= {"embedding_size": m["embedding"], **dict.fromkeys(zero, 0)}
    return AlbertForPreTraining(AlbertConfig(**size))


def chance(*place: object) -> np.random.Philox:
    digest = hashlib.sha256("/".join(map(str, place)).encode()).digest()
    return np.random.Philox(key=np.frombuffer(digest[:16], "<u8"))


def row_of(r: Any, text: list[int], starts: list[int], draw: np.random.Generator) -> Row:
    cut = starts[int(draw.random() * len(starts))] if starts else 1 + int(draw.random() * (len(text) - 1))
    swapped = draw.random() < 0.5
    first, second = (text[cut:], text[:cut]) if swapped else (text[:cut], text[cut:])
    ids = [CLS, *first, SEP, *second, SEP]
    places = [place for place, token in enumerate(ids) if place not in (0, len(first) + 1, len(ids) - 1)]
    ranked = [places[number] for number in np.argsort(draw.random(len(places)))]
    hidden = sorted(ranked[: max(1, round(r["masked"] * len(places)))])
    labels = {place: ids[place] for place in hidden}
    kinds, others = draw.random(len(hidden)), draw.random(len(hidden))
    for place, kind, other in zip(hidden, kinds, others, strict=True):
        if kind >= 0.1:
            ids[place] = WORDS_FROM + int(other * (r["vocab"] - WORDS_FROM)) if kind < 0.2 else MASK
    return ids, labels, len(first) + 2, swapped


def rows_of(r: Any, record: Any, shards: list[tuple[list[int], list[int]]]) -> list[Row]:
    found, long = [], r["model"]["context"] - 3
    for epoch, shard, start, stop in (unit for part in record["contributions"] for unit in part["units"]):
        tokens, starts = shards[shard]
        draws = chance(record["run"], epoch, shard).random_raw(len(tokens) // long + (len(tokens) % long >= 2))
        for sample in np.argsort(draws, kind="stable")[start:stop].tolist():
            begins = [s - sample * long for s in starts if sample * long < s < min((sample + 1) * long, len(tokens))]
            draw = np.random.Generator(chance(record["run"], epoch, shard, sample))
            found.append(row_of(r, tokens[sample * long : (sample + 1) * long], begins, draw))
    return found


def set_gradient(model: Any, rows: list[Row], clip_norm: float) -> None:
    model.zero_grad()
    for ids, labels, second, swapped in rows:  # one by one, without padding
        found = model(torch.tensor([ids]), token_type_ids=torch.tensor([[int(p >= second) for p in range(len(ids))]]))
        words = cross_entropy(found.prediction_logits[0, list(labels)], torch.tensor([*labels.values()]))
        order = cross_entropy(found.sop_logits, torch.tensor([int(swapped)]))
        torch.autograd.backward((words + order) * len(labels))
    torch._foreach_div_([p.grad for p in model.parameters()], sum(len(labels) for _, labels, *_ in rows))
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)


def main(folder: Path) -> dict[str, torch.Tensor]:
    r, shards = (json.loads((folder / name).read_text()) for name in ("recipe.json", "shards.json"))
    (model := model_of(r)).load_state_dict(weights_of(folder / "step0.safetensors"), strict=False)
    files = [load_file(folder / f"{shard['digest']}.safetensors") for shard in shards]
    texts = [(file["tokens"].tolist(), file["starts"].tolist()) for file in files]
    lines = [path.read_bytes().split(b"\n") for path in (folder / "records").iterdir()]
    records = [json.loads(head) | {"contributions": json.loads(parts)} for head, _, parts, *_ in lines]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for record in sorted(records, key=lambda record: int(record["index"])):
        set_gradient(model, rows_of(r, record, texts), r["optimizer"]["clip_norm"])
        move(model, moments, record["step"], r["optimizer"], r["target_steps"])
    return {name: p.detach() for name, p in model.named_parameters()}
