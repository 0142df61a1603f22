"""The model of a recipe, and the one order in which its parameters lie in the flat vector."""

import hashlib
import math
from collections.abc import Iterator

import numpy as np
import torch
from msgspec import Struct
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from peer_agent.protocol.recipe import Recipe

END_OF_TEXT = 0  # the tokenizer's first token; also begins a text
SPREAD = 0.02  # standard deviation of fresh matrices, as in GPT-2
INTO_RESIDUAL = ("c_proj.weight", "o_proj.weight", "down_proj.weight")  # scaled by depth, as in GPT-2


class Piece(Struct, frozen=True, array_like=True):
    """One parameter tensor: elements [start, start + product of shape) of the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """The element behind this parameter's last, in the flat vector."""
        return self.start + math.prod(self.shape)

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The view of a flat vector that is this tensor."""
        return flat[self.start : self.stop].view(self.shape)


class Layout(Struct, frozen=True):
    """`named_parameters()` laid end to end, tied ones once."""

    pieces: tuple[Piece, ...]
    elements: int


def layout_of(model: torch.nn.Module) -> Layout:
    """The layout of a model's parameters."""
    pieces, start = [], 0
    for name, parameter in model.named_parameters():
        pieces.append(Piece(name, tuple(parameter.shape), start))
        start = pieces[-1].stop
    return Layout(tuple(pieces), start)


def build_model(recipe: Recipe) -> PreTrainedModel:
    """A freshly initialised model in fp32, the same on every machine. No download, no remote code, no dropout."""
    build = {"gpt2": _gpt2, "llama": _llama}[recipe.model.family]
    model: PreTrainedModel = build(recipe)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            _initialise(parameter, name, recipe)
    return model


def parameters_of(model: torch.nn.Module, layout: Layout) -> Iterator[tuple[Piece, torch.nn.Parameter]]:
    """Each piece of the layout with the parameter it stands for."""
    return zip(layout.pieces, model.parameters(), strict=True)


def _gpt2(recipe: Recipe) -> PreTrainedModel:
    shape = recipe.model
    config = GPT2Config(
        vocab_size=recipe.vocab,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        # A dropped unit cannot be keyed by sample, so a round would not equal one large batch (rule 33).
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        summary_first_dropout=0.0,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
        tie_word_embeddings=True,
    )
    return GPT2LMHeadModel(config)


def _llama(recipe: Recipe) -> PreTrainedModel:
    shape = recipe.model
    # No padding token: its embedding would never learn, and it is the end-of-text token here.
    config = LlamaConfig(
        vocab_size=recipe.vocab,
        max_position_embeddings=shape.context,
        hidden_size=shape.width,
        intermediate_size=-(-shape.width // 3) * 8,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def _initialise(parameter: torch.nn.Parameter, name: str, recipe: Recipe) -> None:
    """Normal values keyed by seed and name; torch's own differ between vector units."""
    key = hashlib.sha256(f"{recipe.seed}/{name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")))
    spread = SPREAD / math.sqrt(2 * recipe.model.layers) if name.endswith(INTO_RESIDUAL) else SPREAD
    with torch.no_grad():
        # Drawn in float64: where two mathematics libraries differ in the last bit, float32 does not see it.
        values = generator.standard_normal(tuple(parameter.shape)).astype(np.float32)
        parameter.copy_(torch.from_numpy(values * np.float32(spread)))
