"""The checked, declarative description of a training job. Never code: all values have bounds, none names a file."""

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from peer_agent.protocol.errors import Fault, Problem

Codec = Literal["fp32", "fp16", "int8", "int4"]
LADDER: tuple[Codec, ...] = ("fp32", "fp16", "int8", "int4")
OptimizerName = Literal["lamb", "adamw"]


class Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A causal language model built from a transformers configuration. `vocab` is set from the tokenizer."""

    family: Literal["gpt2", "llama"] = "gpt2"
    layers: Annotated[int, Meta(ge=1, le=64)] = 2
    width: Annotated[int, Meta(ge=16, le=8192)] = 64
    heads: Annotated[int, Meta(ge=1, le=128)] = 4
    context: Annotated[int, Meta(ge=8, le=8192)] = 64  # tokens in a sample


class Optimizer(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """LAMB (arXiv 1904.00962) or AdamW (arXiv 1711.05101) with warm-up and decay by committed step."""

    name: OptimizerName = "lamb"
    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 0.01
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.98
    epsilon: Annotated[float, Meta(ge=1e-12, le=1e-2)] = 1e-6
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.01
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # of the averaged gradient; 0 = never
    warmup_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    final_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1  # learning rate at the last step / peak


class Recipe(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides what is computed. The same bytes on every peer."""

    objective: Literal["causal_lm"] = "causal_lm"
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    vocab: Annotated[int, Meta(ge=257, le=65_536)] = 2048
    target_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 48  # samples in a step, at least
    micro_batch: Annotated[int, Meta(ge=1, le=4096)] = 4  # samples in a lease unit
    target_steps: Annotated[int, Meta(ge=1, le=10_000_000)] = 1000
    minimum_trainers: Annotated[int, Meta(ge=1, le=10_000)] = 1  # in sync before the first round
    snapshot_every: Annotated[int, Meta(ge=1, le=100_000)] = 20  # steps
    mode: Literal["sync"] = "sync"
    staleness: Literal[0, 1] = 0  # steps that work may be old by design: 1 overlaps the round (rule 10)
    codec_up: Codec = "fp16"
    codec_down: Codec = "fp16"
    contributors: Literal["all", "fast"] = "all"  # fast: whoever would hold up the others is left out for one round
    codecs: Literal["stated", "plan"] = "stated"  # plan: those above, or smaller ones where links are slow (rule 14)
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0

    def codecs_from(self, stated: Codec) -> tuple[Codec, ...]:
        """What the plan may use in the place of a stated codec: that one, and then fewer and fewer bits."""
        return LADDER[LADDER.index(stated) :] if self.codecs == "plan" else (stated,)

    def tokens_in(self, samples: int) -> tuple[int, int]:
        """Fewest and most loss tokens in a unit: of a causal language model every token of a sample but the first,
        which nothing predicts. A shard's last sample may be cut short, but predicts something.
        """
        each = self.model.context - 1
        return (samples - 1) * each + 1, samples * each


DEFAULT = Recipe()
LATER = ("contributors", "codecs")  # values that agents of before do not know


class OutOfBounds(Problem):
    """E301, for a rule that ties values together. `value`: the path of the one to change, empty where none is."""

    def __init__(self, reason: str, value: str = "") -> None:
        super().__init__(Fault.of("E301", reason=reason))
        self.value = value


def encode_recipe(recipe: Recipe) -> bytes:
    """Canonical JSON of a recipe."""
    return msgspec.json.encode(as_values(recipe))


def as_values(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain values, in its own order.

    What came later is there where it says something: older recipes keep their bytes, and older agents read the others.
    """
    values: dict[str, Any] = msgspec.to_builtins(recipe)
    usual = {name for name in LATER if values[name] == getattr(DEFAULT, name)}
    return {name: value for name, value in values.items() if name not in usual}


def parse_recipe(data: bytes | str) -> Recipe:
    """A recipe within its bounds. Raises Problem E301 with the first value that is not."""
    try:
        recipe = msgspec.json.decode(data, type=Recipe)
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def checked(recipe: Recipe) -> Recipe:
    """The recipe itself, once the rules that tie its values together hold. Raises OutOfBounds."""
    model, optimizer = recipe.model, recipe.optimizer
    floats = (optimizer.learning_rate, optimizer.weight_decay, optimizer.epsilon, optimizer.clip_norm)
    is_odd = model.family == "llama" and model.width // model.heads % 2 == 1
    rules = (
        ("model.width", f"width {model.width} is not a multiple of heads {model.heads}", model.width % model.heads),
        ("model.width", "a head of a llama needs an even width", is_odd),
        (
            "micro_batch",
            f"micro batch {recipe.micro_batch} is above the target batch",
            recipe.micro_batch > recipe.target_batch,
        ),
        ("optimizer.warmup_steps", "warm-up is longer than the run", optimizer.warmup_steps > recipe.target_steps),
        ("", "a value is not finite", not all(math.isfinite(value) for value in floats)),
        ("model.layers", "the model is larger than 2^31 parameters", parameters(recipe) >= 2**31),
    )
    for value, reason, is_broken in rules:
        if is_broken:
            raise OutOfBounds(reason, value)
    return recipe


def parameters(recipe: Recipe) -> int:
    """About how many parameters the model has: embeddings and 12 width^2 a layer."""
    model = recipe.model
    return recipe.vocab * model.width + model.context * model.width + model.layers * 12 * model.width**2
