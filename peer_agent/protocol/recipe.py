"""The checked, declarative description of a training job. A recipe is never code, and all its values are bounded."""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta, Struct, StructMeta

from peer_agent.protocol.errors import Fault, Problem

Codec = Literal["fp32", "fp16", "int8", "int4"]
AveragingRule = Literal["mean", "geometric median", "centered clip"]
LADDER: tuple[Codec, ...] = ("fp32", "fp16", "int8", "int4")
OptimizerName = Literal["lamb", "adamw", "sgd", "larc"]
MOST_PARAMETERS = 2**31 - 1
MOST_FILE_BYTES = 1 << 40
MOST_SOURCES = 16  # most sources for a run's data
USUAL_STEPS = 100, 10_000  # fewest and most steps in a run if the organizer enters no number
Weight = Annotated[float, Meta(ge=0, le=1e6)]


class Optimizer(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """LAMB (arXiv 1904.00962), AdamW (1711.05101), SGD or LARC (1708.03888). SGD and LARC use `beta1` as momentum."""

    name: OptimizerName = "lamb"
    learning_rate: Annotated[float, Meta(gt=0, le=10)] = 0.01
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.98
    epsilon: Annotated[float, Meta(ge=1e-12, le=1e-2)] = 1e-6
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.01
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # bound on the averaged gradient's norm; 0: never clip
    warmup_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    final_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1  # learning rate at the last step, as a fraction of the peak


class Rule(NamedTuple):
    """A rule about several of a recipe's values together. `value`: the path of the value to change, or empty."""

    value: str
    reason: str
    is_broken: bool


class Words(NamedTuple):
    """The words that a form shows for one of a recipe's values."""

    name: str
    path: str  # path of the value within the recipe, as in `optimizer.name`
    label: str
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # the possible values with their labels, in the form's order


NO_YES = (("0", "no"), ("1", "yes"))


OnHub = Literal["", "dataset", "model", "tokenizer"]


class Material(NamedTuple):
    """The words that pages use for the data or files that people provide for a recipe."""

    name: str  # as in `the text`
    unit: str  # the unit that sizes are in: tokens or images
    file: str  # the file that people upload
    suffixes: tuple[str, ...]  # accepted file suffixes
    or_text: bool = False  # text files with any other suffix are also accepted
    more: str = ""  # words for a further file, which becomes another source, as in `another text`
    adapts: "Material | None" = None  # the model that people must also provide if the recipe adapts one
    takes: "Material | None" = None  # a tokenizer, if people may also provide one
    hub: OnHub = ""  # the kind of Hugging Face Hub repository that the material may come from, or empty
    shown: tuple[str, str] = ("", "")  # for a file that accompanies the data: a title, and what to do without it

    @property
    def brought(self) -> "Material | None":
        """The required model or optional tokenizer that organizers supply besides the data, or None."""
        return self.adapts or self.takes

    def named(self, count: int) -> str:
        """Return the name for `count` files, as in `the texts`."""
        return self.name if count == 1 or self.name.endswith("s") else f"{self.name}s"


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a model is built from, in addition to the recipe: its SHA-256 (hexadecimal) and size in bytes."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=1, le=MOST_FILE_BYTES)]


class Preparation(Struct, frozen=True, forbid_unknown_fields=True, tag_field="data", omit_defaults=True):
    """The settings for converting an uploaded file to shards. Runs with equal settings can share the shards."""

    material: ClassVar[Material]
    beside: ClassVar[Literal["tokenizer", "shards"]]  # the prepared folder that a release also needs
    least_beside: ClassVar[int] = 0  # tokens or images that a release needs, from shards in order of digest
    module: ClassVar[str]  # has `prepare(file, out, preparation[, further files])`, which returns a `Prepared`


class AbstractStruct(StructMeta, ABCMeta):
    """Metaclass of structs with abstract methods. Classes that do not implement all of them cannot be instantiated."""


class Recipe(
    Struct,
    metaclass=AbstractStruct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="objective",
):
    """Everything that determines what a run computes. `training` names the module that contains the torch code."""

    title: ClassVar[str]  # the recipe's name on pages
    about: ClassVar[str]  # what the model does, in one sentence
    library: ClassVar[str] = "transformers"  # the library that loads a release, as named on the Hub
    task: ClassVar[str] = ""  # the Hub's name for the model's task, if any
    summaries: ClassVar[tuple[str, ...]] = ()  # the templates that `summary` fills in; the site translates them
    loss_unit: ClassVar[tuple[str, str]] = ("token", "tokens")  # what the loss is a mean over, singular and plural
    writes: ClassVar[bool] = False  # True if the model can continue a text, with `training.written`
    training: ClassVar[str]
    prepares: ClassVar[type[Preparation]]
    unit_is_whole: ClassVar[bool] = False  # True if a unit's samples affect each other's loss, as with batch norm
    words: ClassVar[tuple[Words, ...]] = ()  # form labels for values that only this recipe has, in the form's order
    presets: ClassVar[Mapping[str, "Recipe"]] = {}
    from_data: ClassVar[tuple[str, ...]] = ()  # values set by `fitted` and shown in no form
    largest: ClassVar[str] = ""  # path of the value that makes a model too large
    usual_passes: ClassVar[int] = 4  # passes over the data; each further pass teaches less (arXiv 2305.16264)
    unit_rows: ClassVar[tuple[str, ...]] = ()  # matrices whose rows are normalized to length 1 after each step

    optimizer: Optimizer = Optimizer()
    target_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 48  # minimum number of samples in a step
    micro_batch: Annotated[int, Meta(ge=1, le=4096)] = 4  # samples in a lease unit
    target_steps: Annotated[int, Meta(ge=1, le=10_000_000)] = 1000
    minimum_trainers: Annotated[int, Meta(ge=1, le=10_000)] = 1  # trainers that must be in sync before the first round
    snapshot_every: Annotated[int, Meta(ge=1, le=100_000)] = 20  # in steps
    staleness: Literal[0, 1] = 0  # how many steps old gradients may be; with 1, computing overlaps the round (rule 10)
    codec_up: Codec = "fp16"
    codec_down: Codec = "fp16"
    contributors: Literal["all", "fast"] = "all"  # fast: leave out, for one round, a peer that would slow the others
    codecs: Literal["stated", "plan"] = "stated"  # plan: the two codecs above, or smaller ones on slow links (rule 14)
    rule: AveragingRule = "mean"  # of gradients; the others withstand more false ones, but are never exact
    precision: Literal["fp32", "mixed"] = "fp32"  # mixed: devices that compute faster in 16 bits do so
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    # Weights of the data's sources, in order: relative numbers of samples. If empty, sources are weighted by size.
    mix: Annotated[tuple[Weight, ...], Meta(max_length=MOST_SOURCES)] = ()

    @property
    def material(self) -> Material:
        """The words that pages use for the data that the recipe learns from."""
        return self.prepares.material

    @property
    def objective(self) -> str:
        return str(self.__struct_config__.tag)

    def codecs_from(self, stated: Codec) -> tuple[Codec, ...]:
        """Return the codecs that a plan may use: `stated` and, if the plan may choose, those with fewer bits."""
        return LADDER[LADDER.index(stated) :] if self.codecs == "plan" else (stated,)

    def steps_over(self, samples: int) -> int:
        """Return the default number of steps: enough for `usual_passes` over the samples, within bounds.

        The bounds are `USUAL_STEPS`. If the warm-up is longer, its length is the number of steps.
        """
        least, most = USUAL_STEPS
        steps = min(max(-(-self.usual_passes * samples // self.target_batch), least), most)
        return max(steps, self.optimizer.warmup_steps)

    # --- defined by each recipe --------------------------------------------------------------------------------------

    @abstractmethod
    def samples_in(self, size: int) -> int:
        """Return the number of samples in a shard of the given size (in tokens or images)."""

    def least_size(self) -> int:
        """Return the smallest amount of data, in tokens or images, that contains one whole sample."""
        return 1

    @abstractmethod
    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Return the minimum and maximum number of loss units in a leased unit of `samples` samples."""

    @abstractmethod
    def parameters(self) -> int:
        """Return the model's approximate number of parameters."""

    def files(self) -> tuple[ModelFile, ...]:
        """Return the files that the model is built from, empty if it starts from the seed alone."""
        return ()

    def fixed_parameters(self) -> int:
        """Return the approximate number of parameters in the model that are neither trained nor sent."""
        return 0

    def operations(self, samples: int) -> float:
        """Estimate how many floating-point operations the gradient of `samples` samples takes. 0 means unknown."""
        del samples
        return 0.0

    @abstractmethod
    def kept_floats(self, samples: int) -> float:
        """Estimate how many floats the forward pass keeps for the backward pass, for `samples` samples at a time."""

    def recomputed_floats(self, samples: int) -> float:
        """Estimate how many floats the forward pass keeps if the backward pass recomputes the layers."""
        return self.kept_floats(samples)

    def rules(self) -> Iterable[Rule]:
        """Return the rules about several values that apply only to this recipe."""
        return ()

    @abstractmethod
    def preparation(self) -> Preparation:
        """Return the settings for converting an uploaded file to shards: an instance of `prepares`."""

    def fitted(self, data: Mapping[str, Any]) -> Self:
        """Return the recipe adjusted to the prepared data. `data`: facts about the data found during preparation."""
        del data
        return self

    def at(self, step: int) -> Self:
        """Return the recipe to use for computing gradients after `step` committed steps."""
        del step
        return self

    def frozen(self, step: int) -> tuple[str, ...]:
        """Return the names of the parameters left unchanged by the update after `step` committed steps."""
        del step
        return ()

    @abstractmethod
    def shard_bytes(self, size: int) -> int:
        """Return the maximum size of a prepared shard in bytes. `size`: the shard's size in tokens or images."""

    @abstractmethod
    def usage(self, model: str) -> str:
        """Return a few lines of Python that use a released model. `model`: its folder or name as a Python string."""

    @abstractmethod
    def summary(self) -> str:
        """Describe the model in a few words, as in `a 4-layer GPT-2 language model`."""


def with_one_layer(*summaries: str) -> tuple[str, ...]:
    """Return templates of summaries, followed by the same ones for a model that has only one layer."""
    return (*summaries, *(each.replace("{layers} layers", "{layers} layer") for each in summaries))


AnyRecipe = TypeVar("AnyRecipe", bound=type[Recipe])

KINDS: dict[str, type[Recipe]] = {}  # by objective
USUAL_OBJECTIVE = "causal_lm"  # the objective of a recipe that states none
FIRST = ("objective", "model", "optimizer", "vocab")  # first in canonical order; the rest follow as declared


def register(kind: AnyRecipe) -> AnyRecipe:
    """Register a recipe class. Raises ValueError if another class has the same objective."""
    name = str(kind.__struct_config__.tag)
    if KINDS.setdefault(name, kind) is not kind:
        raise ValueError(f"there are two recipes called {name}")
    return kind


class OutOfBounds(Problem):
    """E301, raised for a broken rule about several values. `value`: the path of the value to change, or empty."""

    def __init__(self, reason: str, value: str = "") -> None:
        super().__init__(Fault.of("E301", reason=reason))
        self.value = value


class _Head(Struct, frozen=True):
    objective: str = USUAL_OBJECTIVE


def encode_recipe(recipe: Recipe) -> bytes:
    """Return the canonical JSON of a recipe."""
    return msgspec.json.encode(as_values(recipe))


def as_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a dict of plain values in canonical order."""
    values: dict[str, Any] = msgspec.to_builtins(recipe)
    order = (*(name for name in FIRST if name in values), *(name for name in values if name not in FIRST))
    return {name: values[name] for name in order}


def parse_recipe(data: bytes | str) -> Recipe:
    """Parse a recipe and check its bounds. Raises Problem E301, naming the first value that is out of bounds."""
    try:
        recipe = msgspec.json.decode(data, type=_kind_of(msgspec.json.decode(data, type=_Head).objective))
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def recipe_of(values: Mapping[str, Any]) -> Recipe:
    """Make a checked recipe from plain values. Raises Problem E301 if a value is invalid."""
    try:
        kind = _kind_of(msgspec.convert(values, _Head).objective)
        recipe = msgspec.convert({"objective": USUAL_OBJECTIVE, **values}, kind)
    except msgspec.ValidationError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def _kind_of(objective: str) -> type[Recipe]:
    """Return the recipe class for an objective. Raises Problem E301 if there is none."""
    kind = KINDS.get(objective)
    if kind is None:
        known = ", ".join(sorted(KINDS))
        raise Problem.of("E301", reason=f"the recipe {objective[:40]!r} is not one of {known} (an update may know it)")
    return kind


AnyChecked = TypeVar("AnyChecked", bound=Recipe)


def checked(recipe: AnyChecked) -> AnyChecked:
    """Return the recipe itself. Raises OutOfBounds if it breaks a rule about several of its values."""
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
    # Check the recipe's own rules first, because an error about the size of an impossible model would be misleading.
    yield from recipe.rules()
    yield Rule(recipe.largest, "the model is larger than 2^31 parameters", recipe.parameters() > MOST_PARAMETERS)
