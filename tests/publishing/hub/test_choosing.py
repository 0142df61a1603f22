"""Which files of a repository are wanted, by their names."""

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub import choosing
from peer_agent.publishing.hub.choosing import model_files, text_files, tokenizer_files

MODEL = ["README.md", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "model.bin"]
PARTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]


def test_of_a_model_what_is_read_later() -> None:
    assert model_files(MODEL) == ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]


def test_one_in_parts() -> None:
    whole = [*MODEL[:4], *PARTS, "onnx/model-00001-of-00002.safetensors", "consolidated.safetensors"]
    assert model_files(whole) == [*MODEL[1:4], PARTS[2], *PARTS[:2]]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["tokenizer.json", "model.safetensors"], "E388.*config.json"),
        (["config.json", "model.safetensors"], "E388.*tokenizer.json"),
        (["config.json", "tokenizer.json"], "E388.*model.safetensors"),
        (["config.json", "tokenizer.json", *PARTS[:2]], "E388.*model.safetensors"),
        (["config.json", "tokenizer.json", "pytorch_model.bin"], "E389"),
    ],
)
def test_what_is_no_models_folder(names: list[str], said: str) -> None:
    with pytest.raises(Problem, match=said):
        model_files(names)


def test_of_a_tokenizer_its_files_alone() -> None:
    assert tokenizer_files(MODEL) == ["tokenizer.json", "tokenizer_config.json"]
    with pytest.raises(Problem, match="E372"):
        tokenizer_files(["config.json", "vocab.txt"])


@pytest.mark.parametrize(
    ("names", "pattern", "chosen"),
    [
        (["data/train-1.parquet", "data/train-0.parquet", "data/test-0.parquet"], "", [1, 0]),
        (["a.parquet", "b.jsonl", "README.md"], "", [0]),
        (["b.jsonl", "notes.txt", "dataset_info.json"], "", [0]),
        (["training.txt", "b/constraint.txt"], "training*", [0]),
        (["en/train.jsonl", "fr/train.jsonl"], "fr/*", [1]),
        (["x/train/0.parquet", "x/valid/0.parquet"], "x/valid/*", [1]),
        (["x/train/0.parquet", "xy/train/0.parquet"], "x", [0]),
        (["all.PARQUET"], "", [0]),
    ],
)
def test_of_texts_those_of_one_sort_and_of_the_training_part(names: list[str], pattern: str, chosen: list[int]) -> None:
    assert text_files(names, pattern, "a/b") == [names[place] for place in chosen]


def test_of_several_parts_it_has_to_be_said_which() -> None:
    names = [f"2023.{part}/train-0.parquet" for part in ("ab", "ac", "bn", "de")]
    with pytest.raises(
        Problem,
        match=r"E396.*2023.ab, 2023.ac, 2023.bn and 1 more.*wikipedia/2023.ab\.",
    ):
        text_files(names, "", "wikimedia/wikipedia")
    assert text_files(names, "2023.bn/*", "wikimedia/wikipedia") == ["2023.bn/train-0.parquet"]


def test_more_than_anybody_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MOST_FILES", 2)
    with pytest.raises(Problem, match=r"E396.*3 files"):
        text_files(["1.txt", "2.txt", "3.txt"], "*.txt", "a/b")


@pytest.mark.parametrize(("names", "pattern"), [(["README.md", "a.csv"], ""), (["a.txt"], "b*"), ([], "")])
def test_nothing_to_read(names: list[str], pattern: str) -> None:
    with pytest.raises(Problem, match="E398"):
        text_files(names, pattern, "a/b")
