"""Like `reference.py`, but for images, labelled or with SwAV, and without any code from peer_agent. See there for
FOLDER.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kornia import color, enhance, filters
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from transformers import ResNetConfig, ResNetForImageClassification, ResNetModel

from tests.end_to_end.rig.masked_reference import chance
from tests.end_to_end.rig.reference import move, weights_of

DEPTHS = {"resnet10": [1, 1, 1, 1], "resnet18": [2, 2, 2, 2]}
View = tuple[float, ...]  # left, top, width, height, mirrored, brightness, contrast, saturation, hue, grey, sigma
# pixels [s, s, 3] from 0 to 255, class, the sample's random generator
Sample = tuple[torch.Tensor, int, np.random.Generator]


def model_of(r: Any) -> Any:
    sizes = [r["trunk"]["width"] * 2**stage for stage in range(4)]
    shape = {"embedding_size": sizes[0], "hidden_sizes": sizes, "depths": DEPTHS[r["trunk"]["family"]]}
    config = ResNetConfig(**shape, layer_type="basic", id2label=dict(enumerate(r.get("classes", "?"))))
    if r["objective"] == "image_classification":
        return ResNetForImageClassification(config)
    behind = (nn.Linear(sizes[-1], r["hidden"], bias=False), nn.BatchNorm1d(r["hidden"]), nn.ReLU())
    parts = {"trunk": ResNetModel(config), "head": nn.Sequential(*behind, nn.Linear(r["hidden"], r["projection"]))}
    return nn.ModuleDict(parts | {"prototypes": nn.Linear(r["projection"], r["prototypes"], bias=False)})


def units_of(record: Any, shards: list[tuple[torch.Tensor, torch.Tensor]], unit: int) -> list[list[Sample]]:
    found = []
    for epoch, shard, start, stop in (units for part in record["contributions"] for units in part["units"]):
        pixels, labels = shards[shard]
        draws = chance(record["run"], epoch, shard).random_raw(len(labels) - len(labels) % unit)
        order = np.argsort(draws, kind="stable")[start:stop].tolist()
        keys = (chance(record["run"], epoch, shard, sample) for sample in order)
        found.append([(pixels[s], int(labels[s]), np.random.Generator(k)) for s, k in zip(order, keys, strict=True)])
    return found


def labelled_loss(r: Any, model: Any, samples: list[Sample]) -> tuple[torch.Tensor, int]:
    by, images = int(r["shift"] * r["side"]), []
    for pixels, _, draw in samples:
        down, right = int(draw.random() * (2 * by + 1)), int(draw.random() * (2 * by + 1))
        rows, columns = (torch.arange(r["side"]).add(at - by).clamp(0, r["side"] - 1) for at in (down, right))
        image = pixels[rows][:, columns]
        images.append(image.flip(1) if r["flip"] and draw.random() < 0.5 else image)
    logits = model(pixel_values=torch.stack(images).float().permute(0, 3, 1, 2) / 127.5 - 1).logits
    return cross_entropy(logits, torch.tensor([c for _, c, _ in samples]), reduction="sum"), len(samples)


def views_of(r: Any, draw: np.random.Generator, count: int, least: float, most: float) -> list[View]:
    looks, views = r["looks"], []
    for numbers in draw.random((count, 31)).tolist():
        areas, shapes, (left, top, mirror, jitter, *factors, grey, blur, sigma) = (
            numbers[:10], numbers[10:20], numbers[20:],
        )  # fmt: skip
        width = height = 1.0
        for area, shape in zip(areas, shapes, strict=True):
            part, ratio = least + (most - least) * area, 0.75 * (4 / 3) ** (2 * shape)
            if max(part * ratio, part / ratio) <= 1:
                width, height = math.sqrt(part * ratio), math.sqrt(part / ratio)
                break
        far = looks["strength"] * (jitter < looks["jitter"])
        turns = [(2 * factor - 1) * far for factor in factors]
        box = left * (1 - width), top * (1 - height), width, height, mirror < looks["flip"]
        wide = (0.1 + 1.9 * sigma) / 224 if blur < looks["blur"] else 0
        views.append((*box, *(1 + turn for turn in turns[:3]), turns[3] / 4, grey < looks["grey"], wide))
    return views


def seen(image: torch.Tensor, view: View, side: int) -> torch.Tensor:
    """Return one crop [3, side, side] of an image [3, s, s], computed pixel by pixel."""
    left, top, width, height, mirrored, brightness, contrast, saturation, hue, grey, sigma = view
    size = image.shape[-1]
    x, y = (
        ((torch.arange(side) + 0.5) / side * long + start) * size - 0.5
        for start, long in ((left, width), (top, height))
    )
    x, y = (at.clamp(0, size - 1) for at in (x.flip(0) if mirrored else x, y))
    (x0, y0), (x1, y1) = (x.floor().long(), y.floor().long()), (x.ceil().long(), y.ceil().long())
    rows = image[:, y0] + (image[:, y1] - image[:, y0]) * (y - y0)[:, None]
    cut = (rows[:, :, x0] + (rows[:, :, x1] - rows[:, :, x0]) * (x - x0))[None]
    cut = (cut * brightness).clamp(0, 1)
    cut = (cut * contrast + color.rgb_to_grayscale(cut).mean() * (1 - contrast)).clamp(0, 1)
    cut = (cut * saturation + color.rgb_to_grayscale(cut) * (1 - saturation)).clamp(0, 1)
    cut = enhance.adjust_hue(cut, 2 * math.pi * hue)
    cut = color.rgb_to_grayscale(cut).repeat(1, 3, 1, 1) if grey else cut
    radius = math.ceil(3 * 2 / 224 * side)
    return (filters.gaussian_blur2d(cut, 2 * radius + 1, (sigma * side,) * 2) if sigma else cut)[0] * 2 - 1


def swav_loss(r: Any, model: Any, samples: list[Sample]) -> tuple[torch.Tensor, int]:
    """Return the summed loss and its weight, computed as in the SwAV authors' main_swav.py, without a queue."""
    c, crops = r["crops"], []
    for pixels, _, draw in samples:
        image = pixels.float().permute(2, 0, 1) / 255
        large = views_of(r, draw, 2, c["large_least"], c["large_most"])
        small = views_of(r, draw, c["small"], c["small_least"], c["small_most"])
        sides = [c["large_side"]] * 2 + [c["small_side"]] * c["small"]
        crops.append([seen(image, view, side) for view, side in zip(large + small, sides, strict=True)])
    by_crop = [torch.stack(views) for views in zip(*crops, strict=True)]
    sizes = [torch.cat(part) for part in (by_crop[:2], by_crop[2:]) if part]
    features = torch.cat([model["trunk"](pixel_values=size).pooler_output.flatten(1) for size in sizes])
    scores = model["prototypes"](normalize(model["head"](features))).chunk(len(by_crop))
    loss = torch.zeros(())
    for number in (0, 1):
        q = (scores[number].detach().double().T / r["sharpness"]).exp()
        q /= q.sum()
        for _ in range(r["sinkhorn_steps"]):
            q /= q.sum(1, keepdim=True) * len(q)
            q /= q.sum(0, keepdim=True) * q.shape[1]
        q = (q * q.shape[1]).T.float()
        for other in (other for other in range(len(by_crop)) if other != number):
            loss = loss - (q * (scores[other] / r["temperature"]).log_softmax(1)).sum()
    return loss, 2 * (len(by_crop) - 1) * len(samples)


def main(folder: Path) -> dict[str, torch.Tensor]:
    r, shards = (json.loads((folder / name).read_text()) for name in ("recipe.json", "shards.json"))
    (model := model_of(r)).load_state_dict(weights_of(folder / "step0.safetensors"), strict=False)
    files = [load_file(folder / f"{shard['digest']}.safetensors") for shard in shards]
    images = [(file["pixels"], file["labels"]) for file in files]
    lines = [path.read_bytes().split(b"\n") for path in (folder / "records").iterdir()]
    records = [json.loads(head) | {"contributions": json.loads(parts)} for head, _, parts, *_ in lines]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    loss_of = labelled_loss if r["objective"] == "image_classification" else swav_loss
    for record in sorted(records, key=lambda record: int(record["index"])):
        model.zero_grad()
        tokens = 0
        for samples in units_of(record, images, r["micro_batch"]):
            loss, weight = loss_of(r, model, samples)
            torch.autograd.backward(loss)
            tokens += weight
        torch._foreach_div_([p.grad for p in model.parameters()], tokens)
        is_frozen = record["step"] <= r.get("frozen_steps", 0)
        if is_frozen:
            model["prototypes"].weight.grad.zero_()
        torch.nn.utils.clip_grad_norm_(model.parameters(), r["optimizer"]["clip_norm"] or math.inf)
        before = model["prototypes"].weight.detach().clone() if "prototypes" in r else None
        move(model, moments, record["step"], r["optimizer"], r["target_steps"])
        if before is not None:
            model["prototypes"].weight.data.copy_(before if is_frozen else normalize(model["prototypes"].weight))
    return {name: p.detach() for name, p in model.named_parameters()}
