"""The held-out part: chosen by digest, and never part of the training part, neither as copies nor as passages."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from peer_agent.site_work.inspecting import inspect
from peer_agent.site_work.intake.overlap import choose, digest_of, overlap_of, passages_of
from peer_agent.site_work.prepare_text import Texts, open_all, sources_of
from tests.site_work.intake.made import WORDS, codes_of, json_lines, passages, put, zipped


class Listed(list[str]):
    def size(self, number: int) -> int:
        return len(self[number].encode())


def parts(path: Path, folder: Path) -> tuple[list[str], list[str], Texts]:
    """Return the training documents and the held-out documents of a source, and the source."""
    with ExitStack() as stack:
        (texts,) = open_all(sources_of([path], [path.name], []), folder, stack)
        return [texts.documents[number] for number in texts.trained()], [*texts.held_texts()], texts


def rows(folder: Path, texts: Sequence[str], name: str = "a.jsonl") -> Path:
    shuffled = [*texts]
    random.Random(5).shuffle(shuffled)
    return put(folder, name, json_lines(*({"text": text} for text in shuffled)))


def shared(held: Sequence[str], trained: Sequence[str]) -> float:
    """Return the share of held-out passages in the training part, counted in another way than the product does."""

    def sequences(text: str) -> set[tuple[str, ...]]:
        words = text.lower().replace(".", " ").split()
        return {tuple(words[at : at + 8]) for at in range(max(1, len(words) - 7))}

    known = set[tuple[str, ...]]().union(*map(sequences, trained))
    found = [sequence in known for text in held for sequence in sequences(text)]
    return sum(found) / len(found)


def test_copies_of_rows_go_to_one_part(tmp_path: Path) -> None:
    trained, held, texts = parts(rows(tmp_path, passages(300) * 10), tmp_path)
    assert (texts.opened.verdict.rows, texts.opened.verdict.repeats) == (3000, 2700)
    assert texts.opened.verdict.heldout_overlap == 0
    assert len(held) >= 30
    assert len(held) + len(trained) == 3000
    assert not set(held) & set(trained)
    assert codes_of(texts.opened.verdict) == ["E437"]


def loss_of_a_memoriser(trained: Sequence[str], texts: Sequence[str]) -> float:
    """Return the loss, in nats per word, of a model that knows only which words followed which six words."""
    following: dict[tuple[str, ...], set[str]] = {}
    for text in trained:
        words = text.split()
        for at in range(6, len(words)):
            following.setdefault(tuple(words[at - 6 : at]), set()).add(words[at])
    losses = []
    for text in texts:
        words = text.split()
        for at in range(6, len(words)):
            known = following.get(tuple(words[at - 6 : at]), set())
            losses.append(np.log(len(known)) if words[at] in known else np.log(len(WORDS)))
    return float(np.mean(losses))


def test_memoriser_has_a_high_held_out_loss(tmp_path: Path) -> None:
    trained, held, _ = parts(rows(tmp_path, passages(300) * 10), tmp_path)
    assert loss_of_a_memoriser(trained, trained) < 0.1
    assert loss_of_a_memoriser(trained, held) > 0.9 * np.log(len(WORDS))
    shuffled = random.Random(6).sample(passages(300) * 10, 3000)
    assert loss_of_a_memoriser(shuffled[60:], shuffled[:60]) < 0.1, "as rows set aside at random would tell"


def test_copies_may_differ_in_case_and_spaces(tmp_path: Path) -> None:
    copies = [text.upper().replace(" ", "  ") + "\n" for text in passages(300)]
    trained, held, texts = parts(rows(tmp_path, passages(300) + copies), tmp_path)
    assert texts.opened.verdict.repeats == 300
    assert not {digest_of(text) for text in held} & {digest_of(text) for text in trained}
    assert digest_of("Cafe\u0301  Ｎｏｉｒ\n") == digest_of("caf\u00e9 noir") != digest_of("cafe noir")


def near_copies(texts: Sequence[str]) -> list[str]:
    """Return the texts with three words changed in each."""
    chance, near = random.Random(3), list[str]()
    for text in texts:
        words = text.split()
        for at in chance.sample(range(len(words)), 3):
            words[at] = chance.choice(WORDS)
        near.append(" ".join(words))
    return near


def test_near_copies_are_not_held_out(tmp_path: Path) -> None:
    near = near_copies(passages(300, words=100))
    alone = passages(100, begin=1000, words=100)
    trained, held, texts = parts(rows(tmp_path, passages(300, words=100) + near + alone), tmp_path)
    assert held
    assert shared(held, trained) == texts.opened.verdict.heldout_overlap == 0


def test_passages_in_another_order_are_not_held_out(tmp_path: Path) -> None:
    both, alone = passages(400), passages(400, begin=1000)
    again = random.Random(4).sample(both, len(both))
    text = "\n\n".join([*both, *alone, *again])
    trained, held, texts = parts(put(tmp_path, "a.txt", text), tmp_path)
    assert held
    assert shared(held, trained) < 0.05, "only where a document has the last of these passages"
    assert texts.opened.verdict.heldout_overlap == pytest.approx(shared(held, trained), abs=0.02)


def test_a_text_that_repeats_itself_has_no_part_held_out(tmp_path: Path) -> None:
    _, held, texts = parts(put(tmp_path, "a.txt", "many hands make light work. " * 5000), tmp_path)
    assert held == []
    assert codes_of(texts.opened.verdict) == ["E440"]


def test_a_part_set_aside_is_measured_too(tmp_path: Path) -> None:
    content = {"train.txt": "\n\n".join(passages(100)).encode(), "val.txt": "\n\n".join(passages(20, 90)).encode()}
    _, held, texts = parts(put(tmp_path, "a.zip", zipped(content)), tmp_path)
    assert len(held) >= 2
    assert texts.opened.verdict.heldout_overlap == pytest.approx(0.5, abs=0.1)
    assert codes_of(texts.opened.verdict) == ["E435", "E439"]


def test_what_is_held_out_of_one_source_is_not_in_another(tmp_path: Path) -> None:
    path = rows(tmp_path, passages(300))
    other = rows(tmp_path, passages(300)[::-1] + passages(300, 300), "b.jsonl")
    verdict = inspect([path, other])
    assert verdict.heldout_overlap < 0.01
    assert verdict.left_out["held out of another text"] > 0


def test_the_choice_does_not_depend_on_the_order() -> None:
    texts = Listed(passages(300))
    held = {texts[number] for number in choose(texts, wanted=2000, most=20_000).held}
    texts.reverse()
    assert {texts[number] for number in choose(texts, wanted=2000, most=20_000).held} == held
    assert 2000 <= sum(len(text) for text in held) < 2400


def test_a_group_of_copies_that_is_too_large_is_passed_over() -> None:
    texts = Listed(passages(1) * 300 + passages(20, 50))
    held = choose(texts, wanted=400, most=800).held
    assert held
    assert passages(1)[0] not in {texts[number] for number in held}


def test_a_near_copy_of_what_goes_back_goes_back_too() -> None:
    texts = Listed([*passages(40, words=100), *near_copies(passages(40, words=100))])
    size = sum(texts.size(number) for number in range(len(texts)))
    choice = choose(texts, wanted=size // 2, most=size)
    trained = [text for number, text in enumerate(texts) if number not in choice.held]
    assert 2 <= len(choice.held) < 40
    assert shared([texts[number] for number in choice.held], trained) == choice.overlap == 0


def test_the_overlap_that_is_told_is_the_true_one() -> None:
    """Documents may overlap like the windows of one long text, so that one after another goes back."""
    words = " ".join(passages(400)).split()
    texts = Listed([" ".join(words[at : at + 100]) for at in range(0, 4000, 40)])
    size = sum(map(texts.size, range(len(texts))))
    choice = choose(texts, wanted=9 * size // 10, most=size)
    trained = [text for number, text in enumerate(texts) if number not in choice.held]
    assert choice.overlap == pytest.approx(shared([texts[number] for number in choice.held], trained), abs=0.02)


def test_copies_without_words_go_to_one_part() -> None:
    texts = Listed(["🤝" * length for length in range(9, 19)] * 5)
    held = {texts[number] for number in choose(texts, wanted=100, most=400).held}
    assert held
    assert len([text for text in texts if text in held]) == len(choose(texts, wanted=100, most=400).held)


@pytest.mark.parametrize("text", ["", "...", "🤝"])
def test_texts_without_words_have_no_passages(text: str) -> None:
    assert len(passages_of(text)) == 0
    assert overlap_of([text], [text]) == 0
    assert choose(Listed([text] * 3), wanted=0, most=0).held == []


def test_passages_are_those_of_eight_words() -> None:
    words = WORDS[:20]
    assert len(passages_of(" ".join(words))) == 13
    assert len(passages_of(" ".join(words[:5]))) == 1
    inside = passages_of(" ".join(words[3:15]))
    assert np.isin(inside, passages_of(" ".join(words))).all()
    assert not np.isin(passages_of(" ".join(reversed(words))), passages_of(" ".join(words))).any()
    assert overlap_of([" ".join(words)], [" ".join(words[:14])]) == pytest.approx(7 / 13)
