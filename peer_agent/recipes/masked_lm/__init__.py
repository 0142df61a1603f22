"""The recipe for a masked language model, which predicts hidden words from the text on either side of them, as well as
the order of a sample's two parts.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from peer_agent.protocol.recipe import NO_YES, Optimizer, Rule, Words, register, with_one_layer
from peer_agent.recipes.text.preparation import Language, TextPreparation, TokenizerName
from peer_agent.recipes.text.recipe import TextRecipe, even_heads, kept_floats, operations, recomputed_floats

Token = Annotated[int, Meta(ge=0, le=65_535)]

SPECIAL = 3  # special tokens in a sample: [CLS] A [SEP] B [SEP]
# Floats kept for the backward pass, per layer, token and unit of width. torch saves 28.0 (ALBERT) and 16.0 (BERT) of
# them with transformers 5. BERT needs 1.39 times what is saved, like GPT-2 (28.1 saved, 39 needed). With one shared
# layer, as in ALBERT, the factor is 1.28.
KEPT = {"albert": 36.0, "bert": 22.0}


class Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An encoder's shape. ALBERT applies the same layer `layers` times."""

    family: Literal["albert", "bert"] = "albert"
    layers: Annotated[int, Meta(ge=1, le=64)] = 4
    width: Annotated[int, Meta(ge=16, le=8192)] = 128
    heads: Annotated[int, Meta(ge=1, le=128)] = 4
    context: Annotated[int, Meta(ge=16, le=8192)] = 64  # tokens in a sample, including special ones
    embedding: Annotated[int, Meta(ge=8, le=4096)] = 64  # width of a token's embedding before projection, in ALBERT


@register
class MaskedLM(TextRecipe, frozen=True, kw_only=True, tag="masked_lm"):
    """ALBERT or BERT trained from scratch to predict masked words and, optionally, the order of two parts. A sample is
    as much text as fits in the context along with the special tokens. All full samples have the same number of masked
    words, so a mean over masked words is also a mean over samples.
    """

    summaries = with_one_layer(
        "an ALBERT masked language model of {layers} layers of width {width}, context {context}, {vocab} tokens",
        "a BERT masked language model of {layers} layers of width {width}, context {context}, {vocab} tokens",
    )

    title = "Masked language model"
    about = "Learns to fill in blanks. Good for search and classification; cannot generate text."
    training = "peer_agent.recipes.masked_lm.training"
    loss_unit = ("masked word", "masked words")
    task = "fill-mask"
    largest = "model.layers"
    from_data = ("special",)
    words = (
        Words("family", "model.family", "Family", "ALBERT reuses one layer: few parameters to send."),
        Words("layers", "model.layers", "Layers"),
        Words("width", "model.width", "Width", "A multiple of the heads."),
        Words("heads", "model.heads", "Heads"),
        Words("context", "model.context", "Context", "Tokens per sample."),
        Words("embedding", "model.embedding", "Embedding", "Width of a token's embedding (ALBERT only)."),
        Words("vocab", "vocab", "Vocabulary", "Number of tokens. Use fewer for a small text."),
        Words("tokenizer", "tokenizer", "Tokenizer", "Unigram is usual for masked language models."),
        Words("language", "language", "Language", "How letters are normalized before tokenizing."),
        Words("lowercase", "lowercase", "Ignore capitals", choices=NO_YES),
        Words("masked", "masked", "Masked", "Fraction of words that are hidden."),
        Words("order", "order", "Sentence order", "Also learn which of two parts comes first.", NO_YES),
    )

    model: Model = Model()
    optimizer: Optimizer = Optimizer(learning_rate=0.00176, beta2=0.999, decay="linear", final_ratio=0.0)
    vocab: Annotated[int, Meta(ge=257, le=65_536)] = 4000  # set from the tokenizer
    tokenizer: TokenizerName = "unigram"
    language: Language = "any"
    lowercase: Literal[0, 1] = 0
    masked: Annotated[float, Meta(ge=0.01, le=0.5)] = 0.15
    order: Literal[0, 1] = 1
    # Padding, unknown, [CLS], [SEP] and [MASK]; set from the tokenizer
    special: tuple[Token, Token, Token, Token, Token] = (0, 1, 2, 3, 4)

    @property
    def stretch(self) -> int:
        return self.model.context - SPECIAL

    def masked_of(self, tokens: int) -> int:
        return max(1, round(self.masked * tokens))

    def loss_units_in(self, samples: int) -> tuple[int, int]:
        """Return the minimum and maximum number of masked words. A shard's short last sample has at least one."""
        each = self.masked_of(self.stretch)
        return (samples - 1) * each + 1, samples * each

    def parameters(self) -> int:
        """Return the number of parameters: embeddings, and about 12 width^2 per layer.

        All layers of ALBERT share one set.
        """
        model = self.model
        if model.family == "bert":
            return (self.vocab + model.context) * model.width + (12 * model.layers + 2) * model.width**2
        embeddings = (self.vocab + model.context + 2 * model.width) * model.embedding
        return embeddings + 13 * model.width**2

    def operations(self, samples: int) -> float:
        """Return the number of floating-point operations, with logits computed only for masked words."""
        return operations(self.model, vocab=self.vocab, samples=samples, predicted=self.masked)

    def kept_floats(self, samples: int) -> float:
        each = KEPT[self.model.family]
        return kept_floats(self.model, vocab=self.vocab, samples=samples, a_layer=each, predicted=self.masked)

    def recomputed_floats(self, samples: int) -> float:
        each = KEPT[self.model.family]
        return recomputed_floats(self.model, vocab=self.vocab, samples=samples, a_layer=each, predicted=self.masked)

    def rules(self) -> Iterable[Rule]:
        normalizes = self.tokenizer == "bpe" and self.language != "any"
        yield even_heads(self.model)
        yield Rule("special", "each special token is another one of the vocabulary", not self._are_special())
        yield Rule("language", "only a unigram tokenizer normalizes", normalizes)

    def _are_special(self) -> bool:
        return len(set(self.special)) == len(self.special) and max(self.special) < self.vocab

    def fitted(self, data: Mapping[str, Any]) -> Self:
        return replace(super().fitted(data), special=tuple(data.get("special") or range(5)))

    def preparation(self) -> TextPreparation:
        return TextPreparation(self.vocab, self.tokenizer, self.language, bool(self.lowercase), sentences=True)

    def usage(self, model: str) -> str:
        return (
            "from transformers import pipeline\n"
            f'fill = pipeline("fill-mask", model={model})\n'
            'print(fill("[MASK]")[0]["token_str"])'
        )

    def summary(self) -> str:
        model = self.model
        return self.summaries[(model.family == "bert") + 2 * (model.layers == 1)].format(
            layers=model.layers, width=model.width, context=f"{model.context:,}", vocab=f"{self.vocab:,}"
        )


# From arXiv 2106.10207, section 4.2, with the values in its published code
PAPER = MaskedLM(
    model=Model(layers=24, width=1024, heads=16, context=512, embedding=128),
    optimizer=Optimizer(
        learning_rate=0.00176, beta1=0.9, beta2=0.999, warmup_steps=5000, decay="linear", final_ratio=0.0
    ),
    vocab=32_000,
    language="bengali",
    lowercase=1,
    target_batch=4096,
    micro_batch=4,
    target_steps=1_000_000,
    snapshot_every=100,
)
SMALL = replace(
    PAPER,
    model=Model(layers=6, width=256, heads=4, context=128, embedding=128),
    optimizer=replace(PAPER.optimizer, warmup_steps=100),
    vocab=4000,
    target_batch=128,
    target_steps=1000,
    snapshot_every=50,
)
BERT = MaskedLM(
    model=Model(family="bert", layers=12, width=768, heads=12, context=512, embedding=768),
    optimizer=Optimizer(
        name="adamw",
        learning_rate=0.0001,
        beta2=0.999,
        warmup_steps=10_000,
        decay="linear",
        final_ratio=0.0,
    ),
    vocab=30_000,
    target_batch=256,
    micro_batch=8,
    target_steps=1_000_000,
    snapshot_every=100,
)
MaskedLM.presets = {"sahajBERT, small": SMALL, "sahajBERT, paper": PAPER, "BERT": BERT}
