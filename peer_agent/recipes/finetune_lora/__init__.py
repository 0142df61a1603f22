"""The recipe for low-rank adapters of an existing language model's matrices (LoRA, arXiv 2106.09685).
The base model never changes. Only adapters are trained, sent and averaged. A release merges them into the base model.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from peer_agent.protocol.recipe import ModelFile, Optimizer, Preparation, Recipe, Rule, Words, register, with_one_layer
from peer_agent.recipes.finetune_lora.preparation import AdaptedText
from peer_agent.recipes.text.recipe import kept_floats, recomputed_floats, samples_in, shard_bytes, usage_of_writer

Family = Literal["gpt2", "llama", "mistral", "qwen2", "qwen3"]
KEPT = {"gpt2": 39.0, "llama": 27.0, "mistral": 27.0, "qwen2": 28.0, "qwen3": 32.0}  # as in `causal_lm`
NAMES = {"gpt2": "GPT-2", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen 2", "qwen3": "Qwen 3"}
MOST_VOCAB = 1 << 20
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Shape = tuple[int, int]  # a matrix's inputs and outputs


class Base(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base model's shape, which the site reads from the model's files. `file` is None until a model has been
    added.
    """

    file: ModelFile | None = None
    name: Annotated[str, Meta(max_length=120)] = ""  # shown to people
    family: Family = "llama"
    layers: Size = 2
    width: Size = 64
    heads: Size = 4
    kv_heads: Size = 4
    head: Size = 16  # width of a head
    inside: Size = 172  # width inside the feed-forward
    context: Size = 64  # the longest input, in tokens
    vocab: Annotated[int, Meta(ge=2, le=MOST_VOCAB)] = 512
    is_tied: bool = True  # True if input and output embeddings share a matrix

    @property
    def attention(self) -> dict[str, Shape]:
        """The shape of each attention matrix in a layer, keyed by the end of its name."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        if self.family == "gpt2":
            return {"attn.c_attn": (self.width, 3 * self.width), "attn.c_proj": (self.width, self.width)}
        into = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        return {**{name: (self.width, size) for name, size in into.items()}, "o_proj": (queries, self.width)}

    @property
    def rest(self) -> dict[str, Shape]:
        """The shape of each feed-forward matrix in a layer, keyed by the end of its name."""
        into, out = (self.width, self.inside), (self.inside, self.width)
        if self.family == "gpt2":
            return {"mlp.c_fc": into, "mlp.c_proj": out}
        return {"gate_proj": into, "up_proj": into, "down_proj": out}


class _Read(Struct, frozen=True):
    base: Base


@register
class FinetuneLoRA(Recipe, frozen=True, kw_only=True, tag="finetune_lora"):
    """Adapters of rank `rank` for a base model's matrices, trained on text. A sample is `context` tokens of text."""

    summaries = with_one_layer(
        (
            "adapters of rank {rank} for a {family} language model ({name}) of {layers} layers of width {width}, "
            "context {context}"
        ),
        "adapters of rank {rank} for a {family} language model of {layers} layers of width {width}, context {context}",
    )

    usual_passes = 3
    title = "Fine-tune a language model"
    about = "Adapts an existing model to your text (LoRA). Small uploads."
    writes = True
    training = "peer_agent.recipes.finetune_lora.training"
    prepares: ClassVar[type[Preparation]] = AdaptedText
    task = "text-generation"
    largest = "rank"
    from_data = ("base",)
    words = (
        Words("rank", "rank", "Rank", "Higher ranks learn more and upload more. 8 to 32 is usual."),
        Words("alpha", "alpha", "Alpha", "How strongly the adapters affect the model; often twice the rank."),
        Words("matrices", "matrices", "Matrices", "Attention only, or all layers (learns more, uploads more)."),
        Words("context", "context", "Context", "Tokens per sample, up to the base model's limit."),
    )

    optimizer: Optimizer = Optimizer(name="adamw", learning_rate=2e-4, beta2=0.999, epsilon=1e-8, weight_decay=0.0)
    rank: Annotated[int, Meta(ge=1, le=512)] = 8
    alpha: Annotated[float, Meta(gt=0, le=4096)] = 16.0
    matrices: Literal["attention", "all"] = "attention"
    context: Annotated[int, Meta(ge=8, le=8192)] = 256
    base: Base = Base()

    @property
    def adapted(self) -> dict[str, Shape]:
        return self.base.attention | (self.base.rest if self.matrices == "all" else {})

    def files(self) -> tuple[ModelFile, ...]:
        return () if self.base.file is None else (self.base.file,)

    def samples_in(self, size: int) -> int:
        return samples_in(size, self.context)

    def least_size(self) -> int:
        return self.context

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        return (samples - 1) * (self.context - 1) + 1, samples * (self.context - 1)

    def parameters(self) -> int:
        """Return the number of adapter parameters: two narrow matrices per adapted matrix."""
        return self.base.layers * sum(self.rank * (into + out) for into, out in self.adapted.values())

    def fixed_parameters(self) -> int:
        """Return the number of base parameters: embeddings, matrices, norms and biases."""
        base, both = self.base, {**self.base.attention, **self.base.rest}
        is_gpt2 = base.family == "gpt2"
        embeddings = base.vocab * (1 if base.is_tied else 2) + (base.context if is_gpt2 else 0)
        narrow = (13 if is_gpt2 else 2) * base.width
        return embeddings * base.width + base.layers * (narrow + sum(into * out for into, out in both.values()))

    def kept_floats(self, samples: int) -> float:
        return kept_floats(self._shape, vocab=self.base.vocab, samples=samples, a_layer=KEPT[self.base.family])

    def recomputed_floats(self, samples: int) -> float:
        return recomputed_floats(self._shape, vocab=self.base.vocab, samples=samples, a_layer=KEPT[self.base.family])

    @property
    def _shape(self) -> Base:
        return replace(self.base, context=self.context)

    def rules(self) -> Iterable[Rule]:
        longer = f"the base takes {self.base.context} tokens at most"
        yield Rule("context", longer, self.base.file is not None and self.context > self.base.context)

    def preparation(self) -> AdaptedText:
        return AdaptedText()

    def fitted(self, data: Mapping[str, Any]) -> Self:
        base = convert(data, _Read).base
        return replace(self, base=base, context=min(self.context, base.context))

    def shard_bytes(self, size: int) -> int:
        """Return the maximum size of a shard in bytes. With a large vocabulary, each token takes four bytes."""
        return 2 * shard_bytes(size)

    def usage(self, model: str) -> str:
        return usage_of_writer(model)

    def summary(self) -> str:
        base = self.base
        return self.summaries[(not base.name) + 2 * (base.layers == 1)].format(
            rank=self.rank,
            family=NAMES[base.family],
            name=base.name,
            layers=base.layers,
            width=f"{base.width:,}",
            context=f"{self.context:,}",
        )
