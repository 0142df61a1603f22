"""The recipe for a causal language model, which predicts each token of a sample from those before it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from peer_agent.protocol.recipe import Optimizer, Rule, Words, register, with_one_layer
from peer_agent.recipes.text.recipe import (
    TextRecipe,
    even_heads,
    kept_floats,
    operations,
    recomputed_floats,
    usage_of_writer,
)

# Floats kept from the forward pass for the backward pass, per layer, token and unit of width. Measured with
# transformers 5.
KEPT = {"gpt2": 39.0, "llama": 27.0, "qwen3": 32.0}
NAMES = {"gpt2": "GPT-2", "llama": "Llama", "qwen3": "Qwen"}


class Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    family: Literal["gpt2", "llama", "qwen3"] = "gpt2"
    layers: Annotated[int, Meta(ge=1, le=64)] = 2
    width: Annotated[int, Meta(ge=16, le=8192)] = 64
    heads: Annotated[int, Meta(ge=1, le=128)] = 4
    context: Annotated[int, Meta(ge=8, le=8192)] = 64  # tokens in a sample
    # Heads for keys and values (arXiv 2305.13245), where 0 means as many as `heads`.
    kv_heads: Annotated[int, Meta(ge=0, le=128)] = 0

    @property
    def inside(self) -> int:
        """The inner width of the gated feed-forward: about 8/3 of `width`. Its three matrices together are as large as
        two ungated ones.
        """
        return -(-self.width // 3) * 8

    @property
    def keys(self) -> int:
        """The total width of all heads' keys, and likewise of their values."""
        return self.width // self.heads * (self.kv_heads or self.heads)


@register
class CausalLM(TextRecipe, frozen=True, kw_only=True, tag="causal_lm"):
    """GPT-2, Llama or Qwen trained from scratch on text. A sample is `context` tokens of the text."""

    summaries = with_one_layer(
        "a {name} language model of {layers} layers of width {width}, context {context}, {vocab} tokens"
    )

    title = "Language model"
    about = "Learns to continue text. Choose this if unsure."
    writes = True
    training = "peer_agent.recipes.causal_lm.training"
    task = "text-generation"
    largest = "model.layers"
    from_data = ("end",)
    words = (
        Words("family", "model.family", "Family", "GPT-2 is simplest; Llama and Qwen have the widest tool support."),
        Words("layers", "model.layers", "Layers", "With 2 to 4 layers, laptops train it within an hour."),
        Words("width", "model.width", "Width", "A multiple of the heads."),
        Words("heads", "model.heads", "Heads"),
        Words(
            "kv_heads",
            "model.kv_heads",
            "Key/value heads",
            "Fewer key/value heads use less memory when generating. 0 = same as heads.",
        ),
        Words("context", "model.context", "Context", "Tokens per sample: how far the model looks back."),
        Words("vocab", "vocab", "Vocabulary", "Number of tokens. Use fewer for a small text."),
    )

    model: Model = Model()
    end: Annotated[int, Meta(ge=0, le=65_535)] = 0  # the token after each document, set from the tokenizer

    @property
    def stretch(self) -> int:
        return self.model.context

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Return the minimum and maximum number of loss units: all tokens except each sample's first. The last sample
        may be short.
        """
        each = self.model.context - 1
        return (samples - 1) * each + 1, samples * each

    def parameters(self) -> int:
        model, width = self.model, self.model.width
        if model.family == "gpt2":
            return (self.vocab + model.context + 2) * width + model.layers * (12 * width + 13) * width
        norms = 2 * width + (2 * (width // model.heads) if model.family == "qwen3" else 0)
        layer = 2 * width * (width + model.keys) + 3 * width * model.inside + norms
        embeddings = 2 if model.family == "llama" else 1  # input and output embeddings; one matrix serves both if tied
        return (embeddings * self.vocab + 1) * width + model.layers * layer

    def operations(self, samples: int) -> float:
        return operations(self.model, vocab=self.vocab, samples=samples)

    def kept_floats(self, samples: int) -> float:
        return kept_floats(self.model, vocab=self.vocab, samples=samples, a_layer=KEPT[self.model.family])

    def recomputed_floats(self, samples: int) -> float:
        return recomputed_floats(self.model, vocab=self.vocab, samples=samples, a_layer=KEPT[self.model.family])

    def fitted(self, data: Mapping[str, Any]) -> Self:
        return replace(super().fitted(data), end=data.get("end", 0))

    def rules(self) -> Iterable[Rule]:
        model = self.model
        is_gpt2, keys = model.family == "gpt2", model.kv_heads
        is_odd = not is_gpt2 and model.width // model.heads % 2 == 1
        uneven = f"heads {model.heads} are not a multiple of key heads {keys}"
        yield even_heads(model)
        yield Rule("model.width", f"a head of a {NAMES[model.family]} model needs an even width", is_odd)
        yield Rule("model.kv_heads", "a GPT-2 has as many key heads as heads: 0", is_gpt2 and keys > 0)
        yield Rule("model.kv_heads", uneven, bool(keys) and model.heads % keys > 0)

    def usage(self, model: str) -> str:
        return usage_of_writer(model)

    def summary(self) -> str:
        model = self.model
        return self.summaries[model.layers == 1].format(
            name=NAMES[model.family],
            layers=model.layers,
            width=model.width,
            context=f"{model.context:,}",
            vocab=f"{self.vocab:,}",
        )


# Presets, by the machines and time that people have. A laptop is assumed to compute 50 GFLOPS and send at 30 Mb/s, as
# in the form's estimate. Each model is trained on about twenty tokens per parameter, or on as many as fit into the time
# (arXiv 2203.15556).
EVENING = CausalLM(
    model=Model(layers=6, width=384, heads=6, context=256),
    optimizer=Optimizer(learning_rate=0.006, warmup_steps=60),
    vocab=8192,
    target_batch=256,
    micro_batch=4,
    target_steps=600,
    codec_up="int8",
)
WEEK = CausalLM(
    model=Model(layers=12, width=768, heads=12, context=512),
    optimizer=Optimizer(learning_rate=0.004, warmup_steps=400),
    vocab=32_768,
    target_batch=512,
    micro_batch=2,
    target_steps=7000,
    snapshot_every=50,
    staleness=1,
    codec_up="int8",
    codec_down="int8",
)
MONTH = replace(
    WEEK,
    model=Model(layers=24, width=1024, heads=16, context=1024),
    optimizer=Optimizer(learning_rate=0.003, warmup_steps=600),
    target_batch=1024,
    micro_batch=1,
    target_steps=11_000,
)
CausalLM.presets = {
    "Minutes on two laptops": CausalLM(),
    "An evening with ten laptops": EVENING,
    "A week with fifty laptops": WEEK,
    "A month with two hundred laptops": MONTH,
}
