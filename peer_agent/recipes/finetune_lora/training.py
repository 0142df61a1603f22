"""Train adapters with peft, on a transformers model whose fixed parameters come from a single file."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.finetune_lora import FinetuneLoRA
from peer_agent.recipes.initial import draw_normal
from peer_agent.recipes.text.next_token import loss_units_in, perplexity, sample_of, size_of, summed_loss, written
from peer_agent.recipes.text.tokens import TOKENIZER_FILES, Tokens, copy_tokenizer, load_wide_shard, rows_of
from peer_agent.recipes.training import Batch, Place, Samples

__all__ = ["load_shard", "loss_units_in", "sample_of", "size_of", "summed_loss", "written"]

load_shard = load_wide_shard
CONFIG = "config"  # metadata key in the base model's file, with the transformers configuration
ADAPTER = "default"  # peft's name for the only adapter
DROPOUTS = ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout")

# The model


def build_model(recipe: FinetuneLoRA, files: Path) -> PeftModel:
    """Return the base model with its parameters frozen and new adapters that do not change its output yet."""
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,  # type: ignore[arg-type] # a fraction, though peft declares an integer
        lora_dropout=0.0,  # dropout cannot be keyed by sample (rule 33)
        target_modules=list(recipe.adapted),
        fan_in_fan_out=recipe.base.family == "gpt2",
    )
    base = base_model(recipe, files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a name that transformers has deprecated
        model: PeftModel = get_peft_model(base, settings)
    for name, parameter in model.named_parameters():
        if f"lora_A.{ADAPTER}" in name:
            # The standard deviation of the uniform values that peft itself draws
            draw_normal(parameter, seed=recipe.seed, name=name, spread=(3 * parameter.shape[1]) ** -0.5)
    return model


def base_model(recipe: FinetuneLoRA, files: Path) -> PreTrainedModel:
    """Load the base model in fp32, keeping only one copy in memory. Raises Problem E111 if the file does not match."""
    assert recipe.base.file is not None
    path = files / f"{recipe.base.file.digest}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            model = empty_model(json.loads((file.metadata() or {})[CONFIG]))
            held, names = model.state_dict(), file.keys()
            shapes = {name: file.get_slice(name).get_shape() for name in names}
            fitting = {name for name, tensor in held.items() if shapes.get(name) == list(tensor.shape)}
            for name in fitting:
                held[name].copy_(file.get_tensor(name))
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise Problem.of("E111", name=path.name, url=files) from error
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if not shapes.keys() <= fitting or not held.keys() - fitting <= tied:
        raise Problem.of("E111", name=path.name, url=files)
    model.tie_weights()
    return model


def empty_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """Build a model without dropout from transformers' own classes. Raises KeyError or ValueError if transformers does
    not support the configuration.
    """
    settings = {**config, **{name: 0.0 for name in DROPOUTS if name in config}}
    kind = CONFIG_MAPPING[settings.pop("model_type")]
    made: Any = AutoModelForCausalLM
    model: PreTrainedModel = made.from_config(kind(**settings), attn_implementation="sdpa").float()
    return model


# Data


def batch_of(recipe: FinetuneLoRA, shard: Tokens, samples: Samples, place: Place) -> Batch:
    """Return the samples' token ids and labels, each [samples, context]."""
    del place  # nothing here is random
    return rows_of(samples, tokens=shard, context=recipe.context)


def figures_of(
    recipe: FinetuneLoRA, model: torch.nn.Module, heldout: Tokens, loss: float, most: int
) -> Mapping[str, float]:
    del recipe, model, heldout, most
    return {"perplexity": perplexity(loss)}


# The release


def save_model(recipe: FinetuneLoRA, model: PeftModel, data: Path, out: Path) -> tuple[str, ...]:
    """Write a transformers model: the base model with the adapters merged into it."""
    whole: Any = model.merge_and_unload()
    whole.save_pretrained(out)
    copy_tokenizer(data / "tokenizer", out, context=recipe.base.context)
    weights = sorted(path.name for path in out.glob("model*.safetensors*"))
    return ("config.json", "generation_config.json", *weights, *TOKENIZER_FILES)
