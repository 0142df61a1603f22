"""The masked language model: its input, its loss, and the release as users load it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForMaskedLM

from peer_agent.protocol.identifiers import RunId
from peer_agent.recipes.masked_lm import BERT, PAPER, SMALL, MaskedLM, Model
from peer_agent.recipes.masked_lm.training import (
    batch_of,
    build_model,
    loss_units_in,
    summed_loss,
)
from peer_agent.recipes.text.recipe import KEPT_LOGITS
from peer_agent.recipes.text.tokens import IGNORED, Sentences
from peer_agent.recipes.training import Place, training_of
from peer_agent.training.model import layout_of

HERE = Place(RunId("ab" * 16), 0, 0)
CPU = torch.device("cpu")
TINY = MaskedLM(model=Model(layers=2, width=32, heads=4, context=35, embedding=16), vocab=300)
STRETCH = 32
PADDING, _, CLS, SEP, MASK = TINY.special
WORDS_FROM = 5


def some_text(tokens: int = 1000, every: int = 10) -> Sentences:
    words = WORDS_FROM + np.arange(tokens) % (TINY.vocab - WORDS_FROM)
    return Sentences(words.astype(np.uint16), np.arange(0, tokens, every, dtype=np.uint32))


def rows(recipe: MaskedLM = TINY, text: Sentences | None = None, place: Place = HERE) -> tuple[Any, ...]:
    text = text or some_text()
    return batch_of(recipe, text, np.arange(recipe.samples_in(len(text.tokens))), place)


def originals(ids: Any, labels: Any) -> Any:
    return np.where(labels == IGNORED, ids, labels)


def test_special_tokens_are_those_of_the_tokenizer() -> None:
    """With different special ids, samples differ only in their numbering, and no other word becomes special."""
    special = (0, 100, 101, 102, 103)
    other = replace(TINY, special=special)
    number_of = np.concatenate([np.array(special), [n for n in range(300) if n not in special]])
    text = some_text()
    moved = Sentences(number_of[text.tokens].astype(np.uint16), text.starts)
    (ids, labels, *rest), (theirs, their_labels, *their_rest) = rows(TINY, text), rows(other, moved)
    assert (number_of[ids] == theirs).all()
    assert (np.where(labels == IGNORED, IGNORED, number_of[labels]) == their_labels).all()
    assert all((a == b).all() for a, b in zip(rest, their_rest, strict=True))
    model: Any = build_model(other)
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (0, 101, 102)


def test_sample_is_a_stretch_split_where_a_sentence_begins() -> None:
    ids, labels, kinds, mask, swapped = rows()
    text = some_text().tokens
    for number, row in enumerate(originals(ids, labels)[:-1]):
        ends = np.flatnonzero(row == SEP)
        assert (row[0], len(ends), ends[-1]) == (CLS, 2, STRETCH + 2)
        parts = [row[1 : ends[0]], row[ends[0] + 1 : -1]]
        assert kinds[number].tolist() == [0] * (len(parts[0]) + 2) + [1] * (len(parts[1]) + 1)
        assert len(parts[0]) > 0 < len(parts[1])
        first, second = reversed(parts) if swapped[number] else parts
        start = number * STRETCH
        assert np.array_equal(np.concatenate([first, second]), text[start : start + STRETCH])
        assert (start + len(first)) % 10 == 0, "the second part begins with a sentence"
    assert mask[:-1].all()
    assert 0.2 < swapped.mean() < 0.8


def test_a_short_last_sample_is_padded() -> None:
    ids, labels, kinds, mask, _ = rows()
    tail = 1000 - 31 * STRETCH
    assert mask[-1].sum() == tail + 3
    assert (ids[-1][tail + 3 :] == PADDING).all()
    assert (labels[-1][tail + 3 :] == IGNORED).all()
    assert not kinds[-1][tail + 3 :].any()


@pytest.mark.parametrize("tokens", [2, 3])
def test_the_shortest_text_is_a_sample(tokens: int) -> None:
    ids, labels, _, mask, _ = rows(text=some_text(tokens))
    assert mask.sum() == tokens + 3
    assert (originals(ids, labels)[0] == SEP).sum() == 2
    assert loss_units_in((ids, labels)) == 1


def test_so_many_words_are_masked_and_nothing_else() -> None:
    ids, labels, *_ = rows()
    counts = (labels != IGNORED).sum(axis=1)
    assert set(counts[:-1]) == {round(0.15 * STRETCH)}
    assert (originals(ids, labels)[labels != IGNORED] >= WORDS_FROM).all()
    assert loss_units_in((ids, labels)) == counts.sum()
    fewest, most = TINY.loss_units_in(len(ids))
    assert fewest <= counts.sum() <= most


def test_most_masked_words_are_hidden_some_changed_some_left() -> None:
    ids, labels, *_ = rows(text=some_text(40_000))
    hidden = labels != IGNORED
    shares = [(ids[hidden] == MASK).mean(), (ids[hidden] == labels[hidden]).mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.02)
    changed = ids[hidden & (ids != MASK) & (ids != labels)]
    assert ((changed >= WORDS_FROM) & (changed < TINY.vocab)).all()


def test_chance_is_of_the_place_and_the_sample_alone() -> None:
    first, again = rows(), rows()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    few = batch_of(TINY, some_text(), np.array([7]), HERE)
    assert all(np.array_equal(a[7:8], b) for a, b in zip(first, few, strict=True))
    for place in (Place(RunId("cd" * 16), 0, 0), Place(HERE.run, 1, 0), Place(HERE.run, 0, 1)):
        assert not np.array_equal(rows(place=place)[1], first[1])


def test_where_no_sentence_begins_it_is_cut_anywhere() -> None:
    ids, labels, *_ = rows(text=Sentences(some_text().tokens, np.array([0], np.uint32)))
    cuts = {int(np.flatnonzero(row == SEP)[0]) for row in originals(ids, labels)[:-1]}
    assert len(cuts) > 10
    assert min(cuts) >= 2


@pytest.mark.parametrize("family", ["albert", "bert"])
@pytest.mark.parametrize("order", [0, 1])
def test_the_loss_is_the_librarys_own(family: Any, order: Any) -> None:
    recipe = replace(TINY, model=replace(TINY.model, family=family), order=order)
    model: Any = build_model(recipe)
    batch = tuple(part[:-1] for part in rows(recipe))
    ids, labels, kinds, mask, swapped = map(torch.from_numpy, batch)
    name = {"albert": "sentence_order_label", "bert": "next_sentence_label"}[family]
    facts = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask, "labels": labels}
    found = model(**facts, **{name: swapped})
    ours = float(summed_loss(recipe, model, batch, CPU).detach()) / loss_units_in(batch)
    logits = found.sop_logits if family == "albert" else found.seq_relationship_logits
    of_order = 0.0 if order else float(torch.nn.functional.cross_entropy(logits.detach(), swapped))
    assert ours == pytest.approx(float(found.loss.detach()) - of_order, rel=1e-5)
    assert order or not swapped.any()


def test_a_fresh_model_knows_nothing() -> None:
    """The loss in the paper's own run starts at ln 32,000 + ln 2 = 11.07."""
    recipe = MaskedLM(model=Model(layers=2, width=64, heads=4, context=67), vocab=32_000)
    batch = rows(recipe)
    loss = float(summed_loss(recipe, build_model(recipe), batch, CPU).detach()) / loss_units_in(batch)
    assert loss == pytest.approx(math.log(32_000) + math.log(2), abs=0.05)


@pytest.mark.parametrize("recipe", [TINY, SMALL])
def test_the_number_of_parameters_is_about_right(recipe: MaskedLM) -> None:
    assert recipe.parameters() == pytest.approx(layout_of(build_model(recipe)).elements, rel=0.05)


def test_an_estimate_counts_logits_of_masked_words_alone() -> None:
    few, many = (MaskedLM(vocab=vocab, masked=0.25) for vocab in (1000, 5000))
    each = 3 * few.model.context * 0.25 * 4000  # logits of three samples
    assert many.operations(3) - few.operations(3) == pytest.approx(6 * each * few.model.width)
    for kept in (MaskedLM.kept_floats, MaskedLM.recomputed_floats):
        assert kept(many, 3) - kept(few, 3) == pytest.approx(KEPT_LOGITS * each)


def test_the_papers_model_has_eighteen_million_parameters() -> None:
    assert PAPER.parameters() == pytest.approx(18.1e6, rel=0.03)
    assert BERT.parameters() == pytest.approx(109e6, rel=0.03)


def test_what_is_padded_is_nothing_at_first() -> None:
    model: Any = build_model(TINY)
    embeddings = model.get_input_embeddings().weight
    assert not embeddings[PADDING].any()
    assert embeddings[PADDING + 1].any()


def test_nothing_is_dropped_out() -> None:
    model = build_model(TINY).train()
    batch = rows()
    assert torch.equal(summed_loss(TINY, model, batch, CPU), summed_loss(TINY, model, batch, CPU))


def test_users_load_what_is_released(tmp_path: Path) -> None:
    for folder in ("tokenizer", "out"):
        (tmp_path / folder).mkdir()
    for name in ("tokenizer.json", "special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / "tokenizer" / name).write_text("{}")
    model: Any = build_model(TINY)
    names = training_of(TINY).save_model(TINY, model, tmp_path, tmp_path / "out")
    assert set(names) == {path.name for path in (tmp_path / "out").iterdir()}
    loaded: Any = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", local_files_only=True)
    ids, _, kinds, mask, _ = (torch.from_numpy(part[:3]) for part in rows())
    facts = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}
    assert torch.allclose(loaded(**facts).logits, model(**facts).prediction_logits, atol=1e-5)
