"""Train a causal language model: transformers' GPT-2, Llama and Qwen, with our own initial values."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.initial import draw_normal
from peer_agent.recipes.text.next_token import loss_units_in, perplexity, sample_of, size_of, summed_loss, written
from peer_agent.recipes.text.tokens import TOKENIZER_FILES, Tokens, copy_tokenizer, load_shard, rows_of
from peer_agent.recipes.training import Batch, Place, Samples

__all__ = ["load_shard", "loss_units_in", "sample_of", "size_of", "summed_loss", "written"]

SPREAD = 0.02  # standard deviation of initial matrices, as in GPT-2
# Matrices whose initial values are scaled by depth, as in GPT-2
INTO_RESIDUAL = ("c_proj.weight", "o_proj.weight", "down_proj.weight")

# The model


def build_model(recipe: CausalLM) -> PreTrainedModel:
    model: PreTrainedModel = {"gpt2": _gpt2, "llama": _llama, "qwen3": _qwen}[recipe.model.family](recipe)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            spread = SPREAD / math.sqrt(2 * recipe.model.layers) if name.endswith(INTO_RESIDUAL) else SPREAD
            draw_normal(parameter, seed=recipe.seed, name=name, spread=spread)
    return model


def _gpt2(recipe: CausalLM) -> PreTrainedModel:
    shape = recipe.model
    config = GPT2Config(
        vocab_size=recipe.vocab,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        # No dropout: it cannot be keyed by sample, so a round would differ from one large batch (rule 33).
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        summary_first_dropout=0.0,
        bos_token_id=recipe.end,
        eos_token_id=recipe.end,
        tie_word_embeddings=True,
    )
    return GPT2LMHeadModel(config)


def _llama(recipe: CausalLM) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_gated(recipe), tie_word_embeddings=False))


def _qwen(recipe: CausalLM) -> PreTrainedModel:
    """Build a Qwen model that normalizes keys and queries and ties its embeddings, like Qwen's small models."""
    return Qwen3ForCausalLM(Qwen3Config(**_gated(recipe), tie_word_embeddings=True))


def _gated(recipe: CausalLM) -> dict[str, Any]:
    shape = recipe.model
    # No padding token, because its embedding would never learn, and here it would be the end-of-text token.
    return {
        "vocab_size": recipe.vocab,
        "max_position_embeddings": shape.context,
        "hidden_size": shape.width,
        "intermediate_size": shape.inside,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "head_dim": shape.width // shape.heads,
        "bos_token_id": recipe.end,
        "eos_token_id": recipe.end,
    }


# Data and loss


def batch_of(recipe: CausalLM, shard: Tokens, samples: Samples, place: Place) -> Batch:
    """Return the samples' token ids and labels, each [samples, context]."""
    del place  # nothing here is random
    return rows_of(samples, tokens=shard, context=recipe.model.context)


def figures_of(
    recipe: CausalLM, model: torch.nn.Module, heldout: Tokens, loss: float, most: int
) -> Mapping[str, float]:
    del recipe, model, heldout, most
    return {"perplexity": perplexity(loss)}


# The release


def save_model(recipe: CausalLM, model: PreTrainedModel, data: Path, out: Path) -> tuple[str, ...]:
    """Write a transformers model, including settings for generating text and its tokenizer."""
    settings: Any = model.generation_config
    settings.update(do_sample=True, temperature=0.8, top_k=50, pad_token_id=recipe.end, max_length=recipe.model.context)
    model.save_pretrained(out)
    copy_tokenizer(data / "tokenizer", out, context=recipe.model.context)
    return ("config.json", "generation_config.json", "model.safetensors", *TOKENIZER_FILES)
