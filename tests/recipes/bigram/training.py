"""The part of the bigram recipe that needs torch."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional

from peer_agent.recipes.text.tokens import IGNORED, TOKENIZER_FILES, Tokens, copy_tokenizer, load_shard, rows_of
from peer_agent.recipes.training import Batch, Place, Samples
from tests.recipes.bigram import Bigram

__all__ = ["load_shard"]


class Table(torch.nn.Module):
    """Logits of the next token, indexed by the previous token."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(vocab, vocab))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits of shape [..., vocab]."""
        return self.table[ids]


def build_model(recipe: Bigram) -> Table:
    return Table(recipe.vocab)


def size_of(shard: Tokens) -> int:
    return len(shard)


def batch_of(recipe: Bigram, shard: Tokens, samples: Samples, place: Place) -> Batch:
    del place
    return rows_of(samples, tokens=shard, context=recipe.context)


def loss_units_in(batch: Batch) -> int:
    return int(np.count_nonzero(batch[1][:, 1:] != IGNORED))


def summed_loss(recipe: Bigram, model: Table, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the loss summed over all tokens except the first of each row."""
    del recipe
    ids, labels = (torch.from_numpy(part).to(device) for part in batch)
    logits = model(ids[:, :-1]).flatten(0, 1)
    return functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")


def figures_of(recipe: Bigram, model: Table, heldout: Tokens, loss: float, most: int) -> dict[str, float]:
    """Return no figures beyond the loss itself."""
    del recipe, model, heldout, loss, most
    return {}


def save_model(recipe: Bigram, model: Table, data: Path, out: Path) -> tuple[str, ...]:
    tensors: dict[str, Any] = {"table": model.table.detach().contiguous()}
    save_file(tensors, out / "model.safetensors")
    copy_tokenizer(data / "tokenizer", out, context=recipe.context)
    return ("model.safetensors", *TOKENIZER_FILES)


def sample_of(folder: Path) -> str:
    """Return an empty text, since this model writes no text."""
    del folder
    return ""
