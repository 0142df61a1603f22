"""What every recipe says: the checked, declarative description of a training job. Never code.

What is trained, and on what, is said by a subclass in `peer_agent.recipes`, registered under its `objective`. All
values have bounds, none names a file.
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

    Of SGD and LARC, `beta1` is the momentum, and there is no second moment.
    """

    name: OptimizerName = "lamb"
    learning_rate: Annotated[float, Meta(gt=0, le=10)] = 0.01
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.98
    epsilon: Annotated[float, Meta(ge=1e-12, le=1e-2)] = 1e-6
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.01
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 1.0  # of the averaged gradient; 0 = never
    warmup_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    final_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1  # learning rate at the last step / peak


class Rule(NamedTuple):
    """A rule that ties values together. `value`: the path of the one to change, empty where none is."""

    value: str
    reason: str
    is_broken: bool


class Words(NamedTuple):
    """A value of a recipe in a form: `path` leads to it from the recipe, as in `optimizer.name`.

    `choices` are the values of a literal with their words, in the order of a form, which shows the values without them.
    """

    name: str
    path: str
    label: str
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()


NO_YES = (("0", "no"), ("1", "yes"))


OnHub = Literal["", "dataset", "model", "tokenizer"]


class Material(NamedTuple):
    """What people bring for a recipe to learn from, in words."""

    name: str  # as in `the text`
    unit: str  # what sizes are counted in: tokens, images
    file: str  # what is uploaded
    shown: tuple[str, str]  # above what people are shown of it: a title, and what to look for
    suffixes: tuple[str, ...]  # that its file has one of …
    or_text: bool = False  # … or it is a text, whatever it is called
    more: str = ""  # one more file, which is a source of its own, as in `another text`
    adapts: "Material | None" = None  # the model that has to be brought too, where one is adapted …
    takes: "Material | None" = None  # … or what may be brought: a tokenizer
    hub: OnHub = ""  # what of the Hub it is, where it may be taken from there by its name

    @property
    def brought(self) -> "Material | None":
        """What is, or may be, brought beside the data."""
        return self.adapts or self.takes

    def named(self, count: int) -> str:
        """As in `the texts`: so many files of it."""
        return self.name if count == 1 or self.name.endswith("s") else f"{self.name}s"


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is built from beside its recipe's values: a file by its sha256 in hexadecimal, and its bytes."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=1, le=MOST_FILE_BYTES)]


class Preparation(Struct, frozen=True, forbid_unknown_fields=True, tag_field="data", omit_defaults=True):
    """How an uploaded file becomes shards: plain values, equal where nothing has to be prepared anew."""

    material: ClassVar[Material]
    beside: ClassVar[Literal["tokenizer", "shards"]]  # the folder of what was prepared that a release is made with
    least_beside: ClassVar[int] = 0  # how much of the shards a release needs, at least, in the order of their digests
    module: ClassVar[str]  # with `prepare(file, out, preparation[, further files])`, which gives a `Prepared`


class AbstractStruct(StructMeta, ABCMeta):
    """Of structs with abstract methods: who leaves one out cannot make an instance."""


class Recipe(
    Struct,
    metaclass=AbstractStruct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="objective",
):
    """Everything that decides what is computed. The same bytes on every peer.

    A subclass is what the whole house knows of a kind of job before torch is loaded; `training` names the module with
    the rest of it (`peer_agent.recipes.training.Training`).
    """

    title: ClassVar[str]  # of the kind, for people …
    about: ClassVar[str]  # … and what its model does, in one sentence
    library: ClassVar[str] = "transformers"  # that loads a release, in the Hub's words …
    task: ClassVar[str] = ""  # … and what it is for, where the Hub has a word for it
    summaries: ClassVar[tuple[str, ...]] = ()  # what `summary` fills in, by which pages find its translation
    loss_unit: ClassVar[tuple[str, str]] = ("token", "tokens")  # what the loss is a mean over: one, and many
    writes: ClassVar[bool] = False  # its model continues a text (`training.written`)
    training: ClassVar[str]
    prepares: ClassVar[type[Preparation]]
    unit_is_whole: ClassVar[bool] = False  # its samples have a part in each other's loss, as where a batch is normed
    words: ClassVar[tuple[Words, ...]] = ()  # of the values that only this kind has, in the order of the form
    presets: ClassVar[Mapping[str, "Recipe"]] = {}
    from_data: ClassVar[tuple[str, ...]] = ()  # the values that `fitted` sets and no form has
    largest: ClassVar[str] = ""  # the path of the value that makes a model too large
    usual_passes: ClassVar[int] = 4  # over its data; a text teaches less and less from there on (arXiv 2305.16264)
    unit_rows: ClassVar[tuple[str, ...]] = ()  # matrices by name, whose rows are made of length 1 after each step

    optimizer: Optimizer = Optimizer()
    target_batch: Annotated[int, Meta(ge=1, le=1_000_000)] = 48  # samples in a step, at least
    micro_batch: Annotated[int, Meta(ge=1, le=4096)] = 4  # samples in a lease unit
    target_steps: Annotated[int, Meta(ge=1, le=10_000_000)] = 1000
    minimum_trainers: Annotated[int, Meta(ge=1, le=10_000)] = 1  # in sync before the first round
    snapshot_every: Annotated[int, Meta(ge=1, le=100_000)] = 20  # steps
    staleness: Literal[0, 1] = 0  # steps that work may be old by design: 1 overlaps the round (rule 10)
    codec_up: Codec = "fp16"
    codec_down: Codec = "fp16"
    contributors: Literal["all", "fast"] = "all"  # fast: whoever would hold up the others is left out for one round
    codecs: Literal["stated", "plan"] = "stated"  # plan: those above, or smaller ones where links are slow (rule 14)
    precision: Literal["fp32", "mixed"] = "fp32"  # mixed: devices that are faster so compute gradients with 16 bits
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    # Weights of the sources of its data, in their order: how many of each other's samples are taken; empty: by size.
    mix: Annotated[tuple[Weight, ...], Meta(max_length=MOST_SOURCES)] = ()

    @property
    def material(self) -> Material:
        """What it learns from, in words."""
        return self.prepares.material

    @property
    def objective(self) -> str:
        """The name that this kind of recipe is registered under."""
        return str(self.__struct_config__.tag)

    def codecs_from(self, stated: Codec) -> tuple[Codec, ...]:
        """What the plan may use in the place of a stated codec: that one, and then fewer and fewer bits."""
        return LADDER[LADDER.index(stated) :] if self.codecs == "plan" else (stated,)

    def steps_over(self, samples: int) -> int:
        """Steps of a run whose organizer states none: its kind's usual passes over so many samples, within bounds."""
        least, most = USUAL_STEPS
        steps = min(max(-(-self.usual_passes * samples // self.target_batch), least), most)
        return max(steps, self.optimizer.warmup_steps)

    # --- what a kind of recipe says of itself -----------------------------------------------------------------------

    @abstractmethod
    def samples_in(self, size: int) -> int:
        """How many samples a shard of that size holds. In what sizes are counted, is the kind's own: tokens, images."""

    def least_size(self) -> int:
        """Of the data that one whole sample takes."""
        return 1

    @abstractmethod
    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Fewest and most loss units that a unit of so many samples can have."""

    @abstractmethod
    def parameters(self) -> int:
        """About how many parameters the model has."""

    def files(self) -> tuple[ModelFile, ...]:
        """What its model is built from beside its values; nothing where it is drawn from the seed alone."""
        return ()

    def fixed_parameters(self) -> int:
        """About how many more parameters the model has, which the run does not change and nobody sends."""
        return 0

    def operations(self, samples: int) -> float:
        """About how many floating-point operations a gradient of so many samples takes; 0 where nobody has counted."""
        del samples
        return 0.0

    @abstractmethod
    def kept_floats(self, samples: int) -> float:
        """About how many floats forward keeps for backward, for so many samples computed at a time."""

    def recomputed_floats(self, samples: int) -> float:
        """The same where layers are computed again in backward; as many where nobody has said how few."""
        return self.kept_floats(samples)

    def rules(self) -> Iterable[Rule]:
        """What ties the values together that only this kind has."""
        return ()

    @abstractmethod
    def preparation(self) -> Preparation:
        """How data are prepared for it: of the class `prepares`."""

    def fitted(self, data: Mapping[str, Any]) -> Self:
        """The recipe for data that are prepared: values that follow from what was found in them."""
        del data
        return self

    def at(self, step: int) -> Self:
        """The recipe as it computes gradients on the state after so many committed steps."""
        del step
        return self

    def frozen(self, step: int) -> tuple[str, ...]:
        """Parameters by name that are left as they are by the step that is made of this state."""
        del step
        return ()

    @abstractmethod
    def shard_bytes(self, size: int) -> int:
        """Bytes of a prepared shard of that size, at most."""

    @abstractmethod
    def usage(self, model: str) -> str:
        """A few lines of Python that use a released model. `model`: its folder or name as a Python string."""

    @abstractmethod
    def summary(self) -> str:
        """The model in a few words, as in `a GPT-2 language model of 4 layers`."""


AnyRecipe = TypeVar("AnyRecipe", bound=type[Recipe])

KINDS: dict[str, type[Recipe]] = {}  # by objective
USUAL_OBJECTIVE = "causal_lm"  # of a recipe that does not say it
FIRST = ("objective", "model", "optimizer", "vocab")  # of the canonical order; the others follow as they are declared


def register(kind: AnyRecipe) -> AnyRecipe:
    """Make a kind of recipe known. Raises ValueError where another one has its name."""
    name = str(kind.__struct_config__.tag)
    if KINDS.setdefault(name, kind) is not kind:
        raise ValueError(f"there are two recipes called {name}")
    return kind


class OutOfBounds(Problem):
    """E301, for a rule that ties values together. `value`: the path of the one to change, empty where none is."""

    def __init__(self, reason: str, value: str = "") -> None:
        super().__init__(Fault.of("E301", reason=reason))
        self.value = value


class _Head(Struct, frozen=True):
    objective: str = USUAL_OBJECTIVE


def encode_recipe(recipe: Recipe) -> bytes:
    """Canonical JSON of a recipe."""
    return msgspec.json.encode(as_values(recipe))


def as_values(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain values, in their canonical order."""
    values: dict[str, Any] = msgspec.to_builtins(recipe)
    order = (*(name for name in FIRST if name in values), *(name for name in values if name not in FIRST))
    return {name: values[name] for name in order}


def parse_recipe(data: bytes | str) -> Recipe:
    """A recipe within its bounds. Raises Problem E301 with the first value that is not."""
    try:
        recipe = msgspec.json.decode(data, type=_kind_of(msgspec.json.decode(data, type=_Head).objective))
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def recipe_of(values: Mapping[str, Any]) -> Recipe:
    """The same from plain values. Raises Problem E301."""
    try:
        kind = _kind_of(msgspec.convert(values, _Head).objective)
        recipe = msgspec.convert({"objective": USUAL_OBJECTIVE, **values}, kind)
    except msgspec.ValidationError as error:
        raise Problem.of("E301", reason=error) from error
    return checked(recipe)


def _kind_of(objective: str) -> type[Recipe]:
    """Raises Problem E301."""
    kind = KINDS.get(objective)
    if kind is None:
        known = ", ".join(sorted(KINDS))
        raise Problem.of("E301", reason=f"the recipe {objective[:40]!r} is not one of {known} (an update may know it)")
    return kind


AnyChecked = TypeVar("AnyChecked", bound=Recipe)


def checked(recipe: AnyChecked) -> AnyChecked:
    """The recipe itself, once the rules that tie its values together hold. Raises OutOfBounds."""
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
    # After the rules of its kind: the size of a model that cannot be is of no interest.
    yield from recipe.rules()
    yield Rule(recipe.largest, "the model is larger than 2^31 parameters", recipe.parameters() > MOST_PARAMETERS)
