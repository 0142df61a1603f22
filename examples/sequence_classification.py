"""Fine-tune a released model to classify texts by subject, and print its accuracy. See README.md."""

import csv
from pathlib import Path

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
from transformers import AutoModelForSequenceClassification, AutoTokenizer

CATEGORY = ("category", "label")


def texts_of(path: Path) -> list[tuple[str, str]]:
    """Return the category and text of each row that has both.

    Raises SystemExit if the file has no category column or no text column.
    """
    rows = csv.DictReader(open_text(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    column = next((name for name in rows.fieldnames or () if name.lower() in CATEGORY), None)
    if column is None or "text" not in (rows.fieldnames or ()):
        raise SystemExit(f"{path}: its first line has to name a column “category” and a column “text”.")
    return [(row[column], row["text"]) for row in rows if row[column] and row["text"]]


def main() -> None:
    given = arguments(__doc__ or "").parse_args()
    settings, tokenizer = settings_of(given), AutoTokenizer.from_pretrained(given.model)
    texts = {name: texts_of(path) for name, path in vars(given).items() if isinstance(path, Path)}
    categories = sorted({category for category, _ in texts["train"]})
    numbers = {category: number for number, category in enumerate(categories)}
    rows = {
        name: [
            Row(tokenizer(text, truncation=True, max_length=given.length)["input_ids"], numbers.get(category, IGNORED))
            for category, text in found
        ]
        for name, found in texts.items()
    }

    def score(is_fresh: bool, seed: int) -> float:
        model = model_for(AutoModelForSequenceClassification, given.model, len(categories), is_fresh=is_fresh)
        train, dev = (rows["train"], rows["dev"]) if given.dev else set_aside(rows["train"], seed)
        finetune(model, train, dev, settings, seed)
        right = [
            bool(row.labels == found)
            for row, found in zip(rows["test"], answers(model, rows["test"], settings), strict=True)
        ]
        return sum(right) / len(right)

    compared("accuracy", given.seeds, score)


if __name__ == "__main__":
    main()
