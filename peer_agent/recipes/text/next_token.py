"""Code for models that predict each token of a sample, except the first, from the tokens before it."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer_agent.recipes.text.tokens import IGNORED, Tokens
from peer_agent.recipes.training import Batch

SAMPLE_TOKENS, SAMPLE_SEED = 120, 0
WRITTEN_TOKENS, WRITING_S = 48, 120.0  # tokens to write after a prompt, and seconds for all prompts together
SAFELY = {"local_files_only": True, "trust_remote_code": False}
LARGEST_LOSS = 700.0  # the perplexity of a larger loss would overflow


def size_of(shard: Tokens) -> int:
    return len(shard)


def loss_units_in(batch: Batch) -> int:
    """Return the number of tokens that have a loss: all labelled tokens except each sample's first."""
    _, labels = batch
    return int(np.count_nonzero(labels[:, 1:] != IGNORED))


def summed_loss(recipe: Any, model: torch.nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the loss in nats, summed over all tokens except each sample's first."""
    del recipe
    ids, labels = (torch.from_numpy(part).to(device) for part in batch)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def perplexity(loss: float) -> float:
    return math.exp(min(loss, LARGEST_LOSS))


def sample_of(folder: Path) -> str:
    """Return a short text that a released model writes without a prompt. The text is deterministic."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return _continued(model, tokenizer, [_start(tokenizer)], SAMPLE_TOKENS).strip()


def written(recipe: Any, model: Any, data: Path, prompts: Sequence[str]) -> list[str]:
    """Return a deterministic continuation of each prompt. After WRITING_S seconds, skip the remaining prompts."""
    del recipe
    tokenizer: Any = AutoTokenizer.from_pretrained(data / "tokenizer", local_files_only=True)
    context, until, texts = model.config.max_position_embeddings, time.monotonic() + WRITING_S, list[str]()
    for prompt in prompts:
        if time.monotonic() > until:
            break
        ids = tokenizer(prompt, add_special_tokens=False).input_ids[-(context // 2) :] or [_start(tokenizer)]
        texts.append(_continued(model, tokenizer, ids, min(WRITTEN_TOKENS, context - len(ids))))
    return texts


def continuation(folder: Path, prompt: str, *, most: int, seconds: float, seed: int) -> tuple[str, bool]:
    """Continue a prompt by at most `most` tokens, for at most about `seconds`.

    Return the text. Also return True if the model read the whole prompt, or False if it read only the end of a long
    one.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **SAFELY, use_safetensors=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, **SAFELY)
    context = model.config.max_position_embeddings
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    read = ids[-(context // 2) :] or [_start(tokenizer)]
    text = _continued(model, tokenizer, read, min(most, context - len(read)), seed=seed, max_time=seconds)
    return text, len(read) >= len(ids)


def _start(tokenizer: Any) -> int:
    return next((id_ for id_ in (tokenizer.bos_token_id, tokenizer.eos_token_id) if id_ is not None), 0)


def _continued(
    model: Any,
    tokenizer: Any,
    ids: Sequence[int],
    most: int,
    *,
    seed: int = SAMPLE_SEED,
    max_time: float | None = None,
) -> str:
    begins = torch.tensor([list(ids)])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        length = min(len(ids) + most, model.config.max_position_embeddings)
        tokens = model.generate(
            input_ids=begins,
            attention_mask=torch.ones_like(begins),
            do_sample=True,
            temperature=0.8,
            top_k=50,
            max_length=length,
            max_time=max_time,
        )
    text: str = tokenizer.decode(tokens[0][len(ids) :], skip_special_tokens=True)
    return text
