"""The example scripts, run the way people run them, on a model released by a test run; and their metrics."""

import gzip
import importlib.util
import json
import lzma
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from peer_agent.publishing.card import CardFacts
from peer_agent.publishing.release import make_release
from peer_agent.recipes.masked_lm import MaskedLM, Model
from peer_agent.site_work.prepare_text import prepare
from peer_agent.training.replica import Replica
from tests.publishing.texts import docstrings

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPE = MaskedLM(model=Model(layers=2, width=32, heads=2, context=64, embedding=16), vocab=400)
NAMES = {"LOC": ("assert", "class", "import"), "PER": ("return", "lambda", "global")}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Import `token_classification` the way the other script in its folder does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        spec = importlib.util.spec_from_file_location("token_classification", EXAMPLES / "token_classification.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    (folder / "text").write_text(docstrings()[:60_000])
    prepare(folder / "text", folder, RECIPE.preparation())
    Replica(RECIPE).save(folder / "state.safetensors")
    facts = CardFacts(slug="a-run", title="A run", steps=1, loss=5.5)
    make_release(recipe=RECIPE, snapshot=folder / "state.safetensors", data=folder, out=folder / "out", facts=facts)
    return folder / "out"


def run(name: str, model: Path, train: Path, test: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(model), "--train", str(train), "--test", str(test)]
    given = ["--seeds", "2", "--epochs", "6", "--learning-rate", "0.01", "--length", "64", *options]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tagged(seed: int, sentences: int) -> str:
    """Return tagged sentences in which each word's tag depends on that word alone."""
    chance, kind_of = random.Random(seed), {word: kind for kind, words in NAMES.items() for word in words}
    words = [*kind_of, "the", "of", "and", "a"]
    lines = []
    for _ in range(sentences):
        some = chance.choices(words, k=8)
        lines += [f"{word}\tB-{kind_of[word]}" if word in kind_of else f"{word}\tO" for word in some] + [""]
    return "\n".join(lines)


def test_names_are_learned(released: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.write("\ufeff" + tagged(1, 200))
    (tmp_path / "test.txt").write_text(tagged(2, 40))
    found = run(
        "token_classification",
        released,
        tmp_path / "train.txt.gz",
        tmp_path / "test.txt",
        "--epochs",
        "12",
        "--patience",
        "12",
    )
    assert found["figure"] == "F1"
    assert len(found["released"]) == len(found["fresh"]) == 2
    assert min(found["released"]) > 0.7, "some words begin with a piece that others begin with too"
    assert found["released"] != found["fresh"]


def test_what_a_text_is_about_is_learned(released: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [(kind, " ".join(chance.choices([*NAMES[kind], "the", "of"], k=9))) for kind in [*NAMES] * 100]
    with lzma.open(tmp_path / "rows.tsv.xz", "wt") as file:
        file.write("index\tcategory\ttext\n" + "".join(f"{n}\t{c}\t{t}\n" for n, (c, t) in enumerate(rows)))
    path = tmp_path / "rows.tsv.xz"
    found = run("sequence_classification", released, path, path, "--dev", str(path), "--patience", "6")
    assert found["figure"] == "accuracy"
    assert min(found["released"]) > 0.9


def test_of_several_rates_the_one_with_the_lowest_loss_counts(released: Path, tmp_path: Path) -> None:
    """Each learning rate starts from the same weights, so the result equals what the best rate alone gives."""
    for name, sentences in (("train", 120), ("test", 40)):
        (tmp_path / name).write_text(tagged(sentences, sentences))
    files = ("token_classification", released, tmp_path / "train", tmp_path / "test")
    alone = run(*files)
    assert run(*files, "--learning-rate", "0.0001", "0.01", "0.00001") == alone
    assert run(*files, "--learning-rate", "0.0001") != alone


def test_a_file_without_columns_is_told(released: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("a\tb\nc\td\n")
    with pytest.raises(AssertionError, match="has to name a column"):
        run("sequence_classification", released, tmp_path / "rows.tsv", tmp_path / "rows.tsv")


def test_batches_hold_rows_of_like_length_and_each_row_once(example: ModuleType) -> None:
    finetuning, chance = sys.modules[example.finetune.__module__], random.Random(3)
    rows = [finetuning.Row([number] * chance.randint(3, 128), 0) for number in range(1000)]
    found = finetuning.of_like_length(rows, 32, chance)
    assert sorted(row.ids[0] for some in found for row in some) == list(range(1000))
    assert max(map(len, found)) == 32
    padded = sum(len(some) * max(len(row.ids) for row in some) for some in found)
    assert padded < 1.1 * sum(len(row.ids) for row in rows), "chance alone pads these to twice what they hold"
    firsts = [some[0].ids[0] for some in found]
    assert firsts != [some[0].ids[0] for some in finetuning.of_like_length(rows, 32, chance)], "each epoch anew"


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        (["B-LOC", "I-LOC", "O"], {(0, 0, 2, "LOC")}),
        (["B-LOC", "B-LOC"], {(0, 0, 1, "LOC"), (0, 1, 2, "LOC")}),
        (["O", "I-PER", "I-PER"], {(0, 1, 3, "PER")}),
        (["B-LOC", "I-PER"], {(0, 0, 1, "LOC"), (0, 1, 2, "PER")}),
        (["O", "O"], set()),
        ([], set()),
    ],
)
def test_whole_entities_are_counted_as_conll_counts_them(example: ModuleType, tags: list[str], found: set[Any]) -> None:
    assert example.entities([tags]) == found


def test_f1_counts_whole_entities(example: ModuleType) -> None:
    true = [["B-LOC", "I-LOC", "O", "B-PER"]]
    assert example.f1(true, true) == 1
    assert example.f1([["B-LOC", "O", "O", "B-PER"]], true) == 0.5
    assert example.f1([["O"] * 4], true) == 0


def test_a_word_without_pieces_does_not_move_the_others(example: ModuleType) -> None:
    row = example.Row([1, 2, 3, 4], [0, 1, 0, 0], (None, 0, 2, None))
    assert example.tags_by(row, [1, 1, 1, 0], 4, ["O", "B-LOC"]) == ["B-LOC", "O", "B-LOC", "O"]
