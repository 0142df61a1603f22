"""Train a masked language model: transformers' ALBERT and BERT, with our own initial values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AlbertConfig, AlbertForPreTraining, BertConfig, BertForPreTraining, PreTrainedModel

from peer_agent.recipes.initial import draw_normal
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.text.tokens import IGNORED, TOKENIZER_FILES, Sentences, copy_tokenizer, load_sentences
from peer_agent.recipes.training import Batch, Place, Samples, chance_of, heldout_batches

JUDGED = 2048  # approximate number of held-out samples evaluated
SPREAD = 0.02  # standard deviation of initial matrices
KEPT_SHARE, RANDOM_SHARE = 0.1, 0.1  # fractions of masked words left unchanged, and replaced by a random word

# The model


def build_model(recipe: MaskedLM) -> PreTrainedModel:
    model = _albert(recipe) if recipe.model.family == "albert" else _bert(recipe)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            draw_normal(parameter, seed=recipe.seed, name=name, spread=SPREAD)
    with torch.no_grad():
        embeddings: Any = model.get_input_embeddings()
        embeddings.weight[recipe.special[0]].zero_()
    return model


# No dropout: it cannot be keyed by sample, so a round would differ from one large batch (rule 33).


def _albert(recipe: MaskedLM) -> PreTrainedModel:
    shape = recipe.model
    padding, _, cls, sep, _ = recipe.special
    config = AlbertConfig(
        vocab_size=recipe.vocab,
        embedding_size=shape.embedding,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        hidden_act="gelu_new",
        max_position_embeddings=shape.context,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        pad_token_id=padding,
        bos_token_id=cls,
        eos_token_id=sep,
    )
    return AlbertForPreTraining(config)


def _bert(recipe: MaskedLM) -> PreTrainedModel:
    shape = recipe.model
    config = BertConfig(
        vocab_size=recipe.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=shape.context,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
        pad_token_id=recipe.special[0],
    )
    return BertForPreTraining(config)


# Data


def load_shard(path: Path) -> Sentences:
    """Return a shard's tokens and where its sentences start. Raises Problem E111 if the file is malformed."""
    return load_sentences(path)


def size_of(shard: Sentences) -> int:
    return len(shard.tokens)


class Sample(NamedTuple):
    """One row of a batch: four vectors [context], and 1 if the parts are swapped, else 0."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]  # the original token at masked words, IGNORED elsewhere
    kinds: NDArray[np.int64]  # 1 in the second part, 0 elsewhere
    mask: NDArray[np.int64]  # 0 at padding, 1 elsewhere
    is_swapped: int


def batch_of(recipe: MaskedLM, shard: Sentences, samples: Samples, place: Place) -> Batch:
    """Return ids, labels, kinds and mask, each [samples, context], and for each sample 1 if its parts are swapped."""
    rows = [_sample(recipe, shard, int(sample), place) for sample in samples]
    return tuple(np.stack(column).astype(np.int64) for column in zip(*rows, strict=True))


def _sample(recipe: MaskedLM, shard: Sentences, sample: int, place: Place) -> Sample:
    """Return one sample as `[CLS] A [SEP] B [SEP]`, split at a sentence. With `order`, swap A and B half the time."""
    chance = chance_of(place, sample)
    padding, _, cls, sep, _ = recipe.special
    start = sample * recipe.stretch
    text = shard.tokens[start : start + recipe.stretch].astype(np.int64)
    cut = _cut(shard, start, len(text), chance)
    is_swapped = bool(recipe.order) and chance.random() < 0.5
    parts = (text[cut:], text[:cut]) if is_swapped else (text[:cut], text[cut:])
    ids = np.concatenate([[cls], parts[0], [sep], parts[1], [sep]])
    second = len(parts[0]) + 2
    is_word = np.ones(len(ids), bool)
    is_word[[0, second - 1, len(ids) - 1]] = False
    ids, labels = _masked(recipe, ids, np.flatnonzero(is_word), chance)
    room = recipe.model.context - len(ids)
    return Sample(
        np.pad(ids, (0, room), constant_values=padding),
        np.pad(labels, (0, room), constant_values=IGNORED),
        np.pad((np.arange(len(ids)) >= second).astype(np.int64), (0, room)),
        np.pad(np.ones(len(ids), np.int64), (0, room)),
        int(is_swapped),
    )


def _cut(shard: Sentences, start: int, size: int, chance: np.random.Generator) -> int:
    """Return where the second part begins: at a random sentence start or, if there is none, at a random token."""
    first, stop = np.searchsorted(shard.starts, [start + 1, start + size])
    if stop > first:
        return int(shard.starts[first + int(chance.random() * (stop - first))]) - start
    return 1 + int(chance.random() * (size - 1))


def _masked(
    recipe: MaskedLM, ids: NDArray[np.int64], places: NDArray[np.int64], chance: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask words: most become [MASK], some become a random word, and some stay the same (arXiv 1810.04805, section
    3.1). Return the changed ids, and labels with the original tokens.
    """
    hidden = np.sort(places[np.argsort(chance.random(len(places)))[: recipe.masked_of(len(places))]])
    labels = np.full(len(ids), IGNORED, np.int64)
    labels[hidden] = ids[hidden]
    draws, others = chance.random(len(hidden)), chance.random(len(hidden))
    other = _word(recipe, (others * (recipe.vocab - len(recipe.special))).astype(np.int64))
    changed = np.where(draws < KEPT_SHARE + RANDOM_SHARE, other, recipe.special[-1])
    ids = ids.copy()
    ids[hidden] = np.where(draws < KEPT_SHARE, ids[hidden], changed)
    return ids, labels


def _word(recipe: MaskedLM, number: NDArray[np.int64]) -> NDArray[np.int64]:
    for special in sorted(recipe.special):
        number = number + (number >= special)
    return number


# Loss


def loss_units_in(batch: Batch) -> int:
    return int(np.count_nonzero(batch[1] != IGNORED))


def summed_loss(recipe: MaskedLM, model: torch.nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the summed loss of masked words, plus each sample's order loss times its number of masked words. Divided
    by the number of masked words, this is the sum of the two mean losses, as in the paper.
    """
    found = _found(recipe, model, batch, device)
    words = functional.cross_entropy(found.words, found.masked, reduction="sum")
    if not recipe.order:
        return words
    is_swapped = torch.from_numpy(batch[-1]).to(device)
    order = functional.cross_entropy(found.order, is_swapped, reduction="none")
    return words + (order * found.masked_each).sum()


class _Found(NamedTuple):
    """A model's output for a batch, and the words that it should predict.

    Masked words are in the order of the samples.
    """

    words: torch.Tensor  # logits, [masked words, vocabulary]
    masked: torch.Tensor  # original tokens, [masked words]
    masked_each: torch.Tensor  # number of masked words in each sample, [samples]
    order: torch.Tensor  # logits, [samples, 2]


def _found(recipe: MaskedLM, model: Any, batch: Batch, device: torch.device) -> _Found:
    """Run the model, computing logits only for masked words.

    Logits for all words would take at least as long as a layer.
    """
    ids, labels, kinds, mask, _ = (torch.from_numpy(part).to(device) for part in batch)
    is_albert = recipe.model.family == "albert"
    encoder = model.albert if is_albert else model.bert
    hidden, pooled = encoder(input_ids=ids, token_type_ids=kinds, attention_mask=mask)[:2]
    is_masked = labels != IGNORED
    words, order = (
        (model.predictions, model.sop_classifier) if is_albert else (model.cls.predictions, model.cls.seq_relationship)
    )
    return _Found(words(hidden[is_masked]), labels[is_masked], is_masked.sum(dim=1), order(pooled))


@torch.no_grad()
def figures_of(
    recipe: MaskedLM, model: torch.nn.Module, heldout: Sentences, loss: float, most: int
) -> Mapping[str, float]:
    del loss
    found = masked = 0
    for batch in heldout_batches(recipe, heldout, most=min(JUDGED, most)):
        said = _found(recipe, model, batch, torch.device("cpu"))
        found += int((said.words.argmax(dim=-1) == said.masked).sum())
        masked += len(said.masked)
    return {"masked accuracy": found / masked}


# The release


def save_model(recipe: MaskedLM, model: PreTrainedModel, data: Path, out: Path) -> tuple[str, ...]:
    model.save_pretrained(out)
    copy_tokenizer(data / "tokenizer", out, context=recipe.model.context)
    return ("config.json", "model.safetensors", *TOKENIZER_FILES)


def sample_of(folder: Path) -> str:
    del folder
    return ""
