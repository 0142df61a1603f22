"""Code shared by the fine-tuning examples: tune released weights and random weights, and compare the results."""

import argparse
import copy
import gzip
import json
import lzma
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

IGNORED = -100  # the label of a token that is left out of the loss
POOL = 16  # number of batches cut from each pool of rows; a pool is sorted by length


@dataclass(frozen=True)
class Row:
    """A sample: its token ids, and either one label or one label per token.

    `words`: for each token, the index of the word that begins there, or None.
    """

    ids: list[int]
    labels: list[int] | int
    words: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Settings:
    learning_rates: tuple[float, ...]
    batch: int
    epochs: int
    patience: int
    device: torch.device


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options common to the examples."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", help="folder of a released model, or its name on the Hub")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--dev", type=Path, help="by which the best epoch is chosen; else a tenth of the training data")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample, at most")
    rates = "each is tried, and what has the lowest loss on the data of --dev is kept"
    parser.add_argument("--learning-rate", type=float, nargs="+", default=[3e-4], help=rates)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--patience", type=int, default=3, help="epochs without a lower loss, after which it ends")
    parser.add_argument("--seeds", type=int, default=3)
    return parser


def settings_of(given: argparse.Namespace) -> Settings:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Settings(tuple(given.learning_rate), given.batch, given.epochs, given.patience, device)


def open_text(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file. The file may be compressed (.xz, .gz)."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for line in file:
            yield line.rstrip("\r\n")


def set_aside(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Split off a random tenth of the rows. Return the remaining rows and that tenth."""
    mixed = random.Random(seed).sample(list(rows), len(rows))
    tenth = max(1, len(rows) // 10)
    return mixed[tenth:], mixed[:tenth]


def of_like_length(rows: Sequence[Row], size: int, chance: random.Random) -> list[list[Row]]:
    """Group rows of similar length into batches, which limits padding. Return the batches in random order."""
    mixed = chance.sample(list(rows), len(rows))
    found = []
    for start in range(0, len(mixed), POOL * size):
        pool = sorted(mixed[start : start + POOL * size], key=lambda row: len(row.ids))
        found += [pool[place : place + size] for place in range(0, len(pool), size)]
    return chance.sample(found, len(found))


def batches(rows: Sequence[Row], size: int, padding: int, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of rows as model input. Each row is padded to the longest row in its batch."""
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        longest = max(len(row.ids) for row in some)
        ids = torch.tensor([row.ids + [padding] * (longest - len(row.ids)) for row in some])
        mask = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in some])
        labels = [
            row.labels if isinstance(row.labels, int) else row.labels + [IGNORED] * (longest - len(row.labels))
            for row in some
        ]
        batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor(labels)}
        yield {name: values.to(device) for name, values in batch.items()}


def model_for(kind: Any, name: str, labels: int, *, is_fresh: bool) -> Any:
    """Return the released model with a new last layer for `labels` labels.

    If `is_fresh`, all its other weights are random too.
    """
    config = AutoConfig.from_pretrained(name, num_labels=labels)
    return kind.from_config(config) if is_fresh else kind.from_pretrained(name, config=config)


def finetune(model: Any, train: Sequence[Row], dev: Sequence[Row], settings: Settings, seed: int) -> None:
    """Train once per learning rate, each time from the initial weights of `model`.

    Load the weights with the lowest loss on `dev` into `model`.
    """
    model.to(settings.device)
    first = copy.deepcopy(model.state_dict())
    lowest, best = float("inf"), first
    for rate in settings.learning_rates:
        model.load_state_dict(first)
        loss, weights = _finetuned(model, train, dev, replace(settings, learning_rates=(rate,)), seed)
        if loss < lowest:
            lowest, best = loss, weights
    model.load_state_dict(best)


def _finetuned(
    model: Any, train: Sequence[Row], dev: Sequence[Row], settings: Settings, seed: int
) -> tuple[float, dict[str, torch.Tensor]]:
    """Train at one learning rate, with AdamW and linear decay.

    Return the lowest loss on `dev`, and the weights that achieved it.
    """
    padding = model.config.pad_token_id or 0
    (rate,) = settings.learning_rates
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    steps = settings.epochs * -(-len(train) // settings.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    lowest, best, worse, chance = float("inf"), copy.deepcopy(model.state_dict()), 0, random.Random(seed)
    for _ in range(settings.epochs):
        model.train()
        for some in of_like_length(train, settings.batch, chance):
            (batch,) = batches(some, settings.batch, padding, settings.device)
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        loss = _mean_loss(model, dev, settings, padding)
        if loss < lowest:
            lowest, best, worse = loss, copy.deepcopy(model.state_dict()), 0
        elif (worse := worse + 1) >= settings.patience:
            break
    return lowest, best


@torch.no_grad()
def _mean_loss(model: Any, rows: Sequence[Row], settings: Settings, padding: int) -> float:
    model.eval()
    found = [
        (float(model(**batch).loss), len(batch["labels"]))
        for batch in batches(rows, settings.batch, padding, settings.device)
    ]
    return sum(loss * count for loss, count in found) / sum(count for _, count in found)


@torch.no_grad()
def answers(model: Any, rows: Sequence[Row], settings: Settings) -> Iterator[Any]:
    """Yield the model's prediction for each row: one label, or one label per token."""
    model.eval()
    padding = model.config.pad_token_id or 0
    for start in range(0, len(rows), settings.batch):
        some = rows[start : start + settings.batch]
        (batch,) = batches(some, settings.batch, padding, settings.device)
        for row, found in zip(some, model(**batch).logits.argmax(dim=-1).tolist(), strict=True):
            yield found if isinstance(found, int) else found[: len(row.ids)]


def compared(name: str, seeds: int, score: Callable[[bool, int], float]) -> None:
    """Print each seed's score for released and for random weights, then the means, then all the scores as JSON."""
    found: dict[str, list[float]] = {"released": [], "fresh": []}
    for seed in range(seeds):
        for way, scores in found.items():
            torch.manual_seed(seed)
            scores.append(score(way == "fresh", seed))
            print(f"seed {seed}, {way:8} {name} {100 * scores[-1]:.2f} %", flush=True)
    for way, scores in found.items():
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(f"{way:8} {name} {100 * statistics.mean(scores):.2f} ± {100 * spread:.2f} %")
    print(json.dumps({"figure": name, **{way: [round(value, 5) for value in values] for way, values in found.items()}}))
