"""Fine-tune a released model to find names in text, and print its F1 for whole entities. See README.md."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from finetuning import (
    IGNORED,
    Row,
    answers,
    arguments,
    compared,
    finetune,
    model_for,
    open_text,
    set_aside,
    settings_of,
)
from transformers import AutoModelForTokenClassification, AutoTokenizer

Sentence = tuple[list[str], list[str]]  # words, and a tag for each word
Entity = tuple[int, int, int, str]  # number of the sentence, first word, word after the last, type


def sentences_of(path: Path) -> list[Sentence]:
    """Return the sentences of a file with a word, a tab and a tag on each line. A blank line ends a sentence.

    Lines without a tag are ignored.
    """
    found: list[Sentence] = [([], [])]
    for line in open_text(path):
        word, _, tag = line.rpartition("\t")
        if not line.strip():
            found.append(([], []))
        elif word.strip() and tag.strip():
            found[-1][0].append(word.strip())
            found[-1][1].append(tag.strip())
    return [sentence for sentence in found if sentence[0]]


def rows_of(sentences: Iterable[Sentence], numbers: dict[str, int], tokenizer: Any, length: int) -> list[Row]:
    """Tokenize sentences. The first token of each word gets the word's label; other tokens are left out of the loss."""
    rows = []
    for words, tags in sentences:
        cut = tokenizer(words, is_split_into_words=True, truncation=True, max_length=length)
        of_tokens = cut.word_ids()
        first = [word if word not in of_tokens[:place] else None for place, word in enumerate(of_tokens)]
        labels = [IGNORED if word is None else numbers.get(tags[word], IGNORED) for word in first]
        rows.append(Row(cut["input_ids"], labels, tuple(first)))
    return rows


def tags_by(row: Row, found: Sequence[int], words: int, tags: Sequence[str]) -> list[str]:
    """Return each word's tag, taken from the predicted label of its first token.

    Words that the length limit cut off get "O".
    """
    labels = {word: tags[label] for word, label in zip(row.words, found, strict=True) if word is not None}
    return [labels.get(word, "O") for word in range(words)]


def entities(tags_of_all: Iterable[Sequence[str]]) -> set[Entity]:
    """Return the entities in tagged sentences, delimited by the rules of the CoNLL scoring program.

    An entity begins at a B tag, or at an I tag that follows a tag of another type.
    """
    found: set[Entity] = set()
    for sentence, tags in enumerate(tags_of_all):
        start, kind = 0, ""
        for place, tag in enumerate([*tags, "O"]):
            prefix, _, name = tag.partition("-")
            if kind and (prefix != "I" or name != kind):
                found.add((sentence, start, place, kind))
                kind = ""
            if prefix in ("B", "I") and not kind:
                start, kind = place, name
    return found


def f1(said: Iterable[Sequence[str]], true: Iterable[Sequence[str]]) -> float:
    """Return the F1 score for whole entities.

    It is twice the number of correct entities, divided by the sum of the numbers of predicted and true entities.
    """
    ours, theirs = entities(said), entities(true)
    return 2 * len(ours & theirs) / max(len(ours) + len(theirs), 1)


def main() -> None:
    given = arguments(__doc__ or "").parse_args()
    settings, tokenizer = settings_of(given), AutoTokenizer.from_pretrained(given.model)
    texts = {name: sentences_of(path) for name, path in vars(given).items() if isinstance(path, Path)}
    tags = sorted({tag for _, tags in texts["train"] for tag in tags})
    numbers = {tag: number for number, tag in enumerate(tags)}
    rows = {name: rows_of(found, numbers, tokenizer, given.length) for name, found in texts.items()}

    def score(is_fresh: bool, seed: int) -> float:
        model = model_for(AutoModelForTokenClassification, given.model, len(tags), is_fresh=is_fresh)
        train, dev = (rows["train"], rows["dev"]) if given.dev else set_aside(rows["train"], seed)
        finetune(model, train, dev, settings, seed)
        true = [of_words for _, of_words in texts["test"]]
        found = zip(rows["test"], answers(model, rows["test"], settings), true, strict=True)
        return f1([tags_by(row, labels, len(of_words), tags) for row, labels, of_words in found], true)

    compared("F1", given.seeds, score)


if __name__ == "__main__":
    main()
