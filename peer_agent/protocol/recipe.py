"""The checked, declarative description of a training job. Never code.

Subclasses in `peer_agent.recipes`, registered by `objective`, add model and data. Values are bounded; none is a file.
"""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta, Struct, StructMeta

from peer_agent.protocol.errors import Fault, Problem

Codec = Literal["fp32", "fp16", "int8", "int4"]
LADDER: tuple[Codec, ...] = ("fp32", "fp16", "int8", "int4")
OptimizerName = Literal["lamb", "adamw", "sgd", "larc"]
MOST_PARAMETERS = 2**31 - 1
MOST_FILE_BYTES = 1 << 40
MOST_SOURCES = 16  # of one run's data
USUAL_STEPS = 100, 10_000  # least and most of a run whose organizer states none
Weight = Annotated[float, Meta(ge=0, le=1e6)]


class Optimizer(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """LAMB (arXiv 1904.00962), AdamW (arXiv 1711.05101), SGD or LARC (arXiv 1708.03888), by committed step.

    For SGD and LARC, `beta1` is the momentum, and there is no second moment.
    """

    name: OptimizerName = "lamb"
    learning_rate: Annotated[float, Meta(gt=0, le=10)] = 0.01
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.98
    epsilon: Annotated[float, Meta(ge=1e-12, le=1e-2)] = 1e-6
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.01
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # of the averaged gradient; 0: never
    warmup_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    final_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1  # learning rate at the last step / peak


class Rule(NamedTuple):
    """A rule that ties values together. `value`: the path of the value to change, or empty."""

    value: str
    reason: str
    is_broken: bool


class Words(NamedTuple):
    """A value of a recipe in a form."""

    name: str
    path: str  # from the recipe, as in `optimizer.name`
    label: str
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # a literal's values with their words, in form order


NO_YES = (("0", "no"), ("1", "yes"))


OnHub = Literal["", "dataset", "model", "tokenizer"]


class Material(NamedTuple):
    """The data that people bring for a recipe, in words."""

    name: str  # as in `the text`
    unit: str  # what sizes are counted in: tokens, images
    file: str  # what is uploaded
    shown: tuple[str, str]  # above the sample that people see: a title, and what to look for
    suffixes: tuple[str, ...]  # one of which its file has
    or_text: bool = False  # or it is a text with any suffix
    more: str = ""  # a further file that is a source of its own, as in `another text`
    adapts: "Material | None" = None  # the model that must be brought too, if one is adapted
    takes: "Material | None" = None  # what may be brought too: a tokenizer
    hub: OnHub = ""  # its kind on the Hub, if it may be named there

    @property
    def brought(self) -> "Material | None":
        """The material that people must or may bring besides the data."""
        return self.adapts or self.takes

    def named(self, count: int) -> str:
        """Return the name for `count` files, as in `the texts`."""
        return self.name if count == 1 or self.name.endswith("s") else f"{self.name}s"


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a model is built from besides its recipe's values: its sha256 in hexadecimal, and its bytes."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=1, le=MOST_FILE_BYTES)]


class Preparation(Struct, frozen=True, forbid_unknown_fields=True, tag_field="data", omit_defaults=True):
    """How an uploaded file becomes shards: plain values. Equal ones need no new preparation."""

    material: ClassVar[Material]
    beside: ClassVar[Literal["tokenizer", "shards"]]  # the prepared folder that a release needs
    least_beside: ClassVar[int] = 0  # how much of the shards a release needs, at least, in the order of their digests
    module: ClassVar[str]  # has `prepare(file, out, preparation[, further files])`, which returns a `Prepared`


class AbstractStruct(StructMeta, ABCMeta):
    """The metaclass of structs with abstract methods: a class that lacks one cannot be instantiated."""


class Recipe(
    Struct,
    metaclass=AbstractStruct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="objective",
):
    """Everything that decides what is computed. The same bytes on every peer.

    Subclasses describe a kind of job without torch; `training` names the module with the rest (`recipes.training`).
    """

    title: ClassVar[str]  # of the kind, for people
    about: ClassVar[str]  # what its model does, in one sentence
    library: ClassVar[str] = "transformers"  # that loads a release, in the Hub's words
    task: ClassVar[str] = ""  # the Hub's word for what it does, if there is one
    summaries: ClassVar[tuple[str, ...]] = ()  # what `summary` fills in, by which pages find its translation
    loss_unit: ClassVar[tuple[str, str]] = ("token", "tokens")  # what the loss is a mean over: singular and plural
    writes: ClassVar[bool] = False  # its model continues a text (`training.written`)
    training: ClassVar[str]
    prepares: ClassVar[type[Preparation]]
    unit_is_whole: ClassVar[bool] = False  # its samples affect each other's loss, as with batch norm
    words: ClassVar[tuple[Words, ...]] = ()  # of the values that only this kind has, in the order of the form
    presets: ClassVar[Mapping[str, "Recipe"]] = {}
    from_data: ClassVar[tuple[str, ...]] = ()  # the values that `fitted` sets and no form has
    largest: ClassVar[str] = ""  # the path of the value that makes a model too large
    usual_passes: ClassVar[int] = 4  # over its data; more passes over a text teach less and less (arXiv 2305.16264)
    unit_rows: ClassVar[tuple[str, ...]] = ()  # matrices by name, whose rows are normalized to length 1 after each step

    optimizer: Optimizer = Optimizer()
    target_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 48  # samples in a step, at least
    micro_batch: Annotated[int, Meta(ge=1, le=4096)] = 4  # samples in a lease unit
    target_steps: Annotated[int, Meta(ge=1, le=10_000_000)] = 1000
    minimum_trainers: Annotated[int, Meta(ge=1, le=10_000)] = 1  # in sync before the first round
    snapshot_every: Annotated[int, Meta(ge=1, le=100_000)] = 20  # steps
    staleness: Literal[0, 1] = 0  # steps that work may be old by design: 1 overlaps the round (rule 10)
    codec_up: Codec = "fp16"
    codec_down: Codec = "fp16"
    contributors: Literal["all", "fast"] = "all"  # fast: a peer that would slow the others is left out for one round
    codecs: Literal["stated", "plan"] = "stated"  # plan: those above, or smaller ones where links are slow (rule 14)
    precision: Literal["fp32", "mixed"] = "fp32"  # mixed: devices that are faster so compute gradients in 16 bits
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    # Weights of the data's sources, in order: their relative numbers of samples. Empty: by size.
    mix: Annotated[tuple[Weight, ...], Meta(max_length=MOST_SOURCES)] = ()

    @property
    def material(self) -> Material:
        """The data that the recipe learns from, in words."""
        return self.prepares.material

    @property
    def objective(self) -> str:
        """The name that this kind of recipe is registered under."""
        return str(self.__struct_config__.tag)

    def codecs_from(self, stated: Codec) -> tuple[Codec, ...]:
        """Return the codecs that a plan may use in place of a stated one: that one, and those with fewer bits."""
        return LADDER[LADDER.index(stated) :] if self.codecs == "plan" else (stated,)

    def steps_over(self, samples: int) -> int:
        """Return the default number of steps: the kind's usual passes over the samples, within bounds."""
        least, most = USUAL_STEPS
        steps = min(max(-(-self.usual_passes * samples // self.target_batch), least), most)
        return max(steps, self.optimizer.warmup_steps)

    # --- what a kind of recipe defines -------------------------------------------------------------------------------

    @abstractmethod
    def samples_in(self, size: int) -> int:
        """Return the samples in a shard of that size. Sizes are in the kind's own unit: tokens, images."""

    def least_size(self) -> int:
        """Return the size of the data that one whole sample takes."""
        return 1

    @abstractmethod
    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Return the fewest and most loss units that a unit of `samples` samples can have."""

    @abstractmethod
    def parameters(self) -> int:
        """Return about how many parameters the model has."""

    def files(self) -> tuple[ModelFile, ...]:
        """Return the files that its model is built from besides its values; empty if only the seed decides."""
        return ()

    def fixed_parameters(self) -> int:
        """Return about how many further parameters the model has that are not trained and not sent."""
        return 0

    def operations(self, samples: int) -> float:
        """Return about how many floating-point operations a gradient of `samples` samples takes; 0: unknown."""
        del samples
        return 0.0

    @abstractmethod
    def kept_floats(self, samples: int) -> float:
        """Return about how many floats forward keeps for backward, for `samples` samples computed at a time."""

    def recomputed_floats(self, samples: int) -> float:
        """Return about how many floats forward keeps if backward recomputes layers; by default `kept_floats`."""
        return self.kept_floats(samples)

    def rules(self) -> Iterable[Rule]:
        """Return the rules that tie together values that only this kind has."""
        return ()

    @abstractmethod
    def preparation(self) -> Preparation:
        """Return how its data are prepared: an instance of `prepares`."""

    def fitted(self, data: Mapping[str, Any]) -> Self:
        """Return the recipe for prepared data, with values that follow from what was found in them."""
        del data
        return self

    def at(self, step: int) -> Self:
        """Return the recipe for computing gradients on the state after `step` committed steps."""
        del step
        return self

    def frozen(self, step: int) -> tuple[str, ...]:
        """Return the names of parameters that the update of this state leaves unchanged."""
        del step
        return ()

    @abstractmethod
    def shard_bytes(self, size: int) -> int:
        """Return the most bytes that a prepared shard of that size takes."""

    @abstractmethod
    def usage(self, model: str) -> str:
        """Return a few lines of Python that use a released model. `model`: its folder or name as a Python string."""

    @abstractmethod
    def summary(self) -> str:
        """Return the model in a few words, as in `a GPT-2 language model of 4 layers`."""


AnyRecipe = TypeVar("AnyRecipe", bound=type[Recipe])

KINDS: dict[str, type[Recipe]] = {}  # by objective
USUAL_OBJECTIVE = "causal_lm"  # of a recipe that does not state one
FIRST = ("objective", "model", "optimizer", "vocab")  # of the canonical order; the others follow as they are declared


def register(kind: AnyRecipe) -> AnyRecipe:
    """Register a kind of recipe. Raises ValueError if another one has its name."""
    name = str(kind.__struct_config__.tag)
    if KINDS.setdefault(name, kind) is not kind:
        raise ValueError(f"there are two recipes called {name}")
    return kind


class OutOfBounds(Problem):
    """E301, for a rule that ties values together. `value`: the path of the value to change, or empty."""

    def __init__(self, reason: str, value: str = "") -> None:
        super().__init__(Fault.of("E301", reason=reason))
        self.value = value


class _Head(Struct, frozen=True):
    objective: str = USUAL_OBJECTIVE


def encode_recipe(recipe: Recipe) -> bytes:
    """Return the canonical JSON of a recipe."""
    return msgspec.json.encode(as_values(recipe))


def as_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values in canonical order."""
    values: dict[str, Any] = msgspec.to_builtins(recipe)
    order = (*(name for name in FIRST if name in values), *(name for name in values if name not in FIRST))
    return {name: values[name] for name in order}


def parse_recipe(data: bytes | str) -> Recipe:
    """Parse a recipe and check its bounds. Raises Problem E301 with the first value that is out of bounds."""
    try:
        recipe = msgspec.json.decode(data, type=_kind_of(msgspec.json.decode(data, type=_Head).objective))
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def recipe_of(values: Mapping[str, Any]) -> Recipe:
    """Make a checked recipe from plain values. Raises Problem E301."""
    try:
        kind = _kind_of(msgspec.convert(values, _Head).objective)
        recipe = msgspec.convert({"objective": USUAL_OBJECTIVE, **values}, kind)
    except msgspec.ValidationError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def _kind_of(objective: str) -> type[Recipe]:
    """Return the recipe class of an objective. Raises Problem E301."""
    kind = KINDS.get(objective)
    if kind is None:
        known = ", ".join(sorted(KINDS))
        raise Problem.of("E301", reason=f"the recipe {objective[:40]!r} is not one of {known} (an update may know it)")
    return kind


AnyChecked = TypeVar("AnyChecked", bound=Recipe)


def checked(recipe: AnyChecked) -> AnyChecked:
    """Return the recipe itself if the rules that tie its values together hold. Raises OutOfBounds."""
    for value, reason, is_broken in _rules(recipe):
        if is_broken:
            raise OutOfBounds(reason, value)
    return recipe


def _rules(recipe: Recipe) -> Iterable[Rule]:
    optimizer = recipe.optimizer
    floats = (optimizer.learning_rate, optimizer.weight_decay, optimizer.epsilon, optimizer.clip_norm)
    batch = f"micro batch {recipe.micro_batch} is above the target batch"
    yield Rule("micro_batch", batch, recipe.micro_batch > recipe.target_batch)
    yield Rule("optimizer.warmup_steps", "warm-up is longer than the run", optimizer.warmup_steps > recipe.target_steps)
    yield Rule("mix", "the weights of the sources add up to nothing", bool(recipe.mix) and not sum(recipe.mix))
    yield Rule("", "a value is not finite", not all(math.isfinite(value) for value in floats))
    # After the rules of its kind: an impossible model's size is of no interest.
    yield from recipe.rules()
    yield Rule(recipe.largest, "the model is larger than 2^31 parameters", recipe.parameters() > MOST_PARAMETERS)
