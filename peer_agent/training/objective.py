"""What a model is trained for: every token but a sample's first is predicted from those before it."""

import numpy as np
import torch
from torch.nn import functional

from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.sampling import samples_in
from peer_agent.training.data import IGNORED, Batch, Tokens, loss_tokens_in, rows_of


def summed_loss(model: torch.nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
    """Nats, summed over the loss tokens of a batch."""
    ids, labels = (torch.from_numpy(part).to(device) for part in batch)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def mean_loss(model: torch.nn.Module, recipe: Recipe, tokens: Tokens, device: torch.device) -> float:
    """Mean nats over the loss tokens of a text. Raises ValueError for a text without any."""
    samples = np.arange(samples_in(len(tokens), recipe.model.context))
    loss_sum, loss_tokens = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(samples), recipe.micro_batch):
            part = samples[start : start + recipe.micro_batch]
            batch = rows_of(part, tokens=tokens, context=recipe.model.context)
            loss_sum += float(summed_loss(model, batch, device))
            loss_tokens += loss_tokens_in(batch[1])
    if not loss_tokens:
        raise ValueError("the text is too short to be evaluated")
    return loss_sum / loss_tokens
