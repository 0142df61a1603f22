"""Data from a strict double of the Hub: inspected, fetched, resumed and compared."""

import hashlib
from pathlib import Path

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import hub_client
from peer_agent.site_work import fetching
from peer_agent.site_work.fetching import Wanted, fetch, look, model_files, text_files, tokenizer_files
from tests.publishing.hub_double import Hub

NAMES = ["README.md", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "model.bin"]
PARTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]


def test_of_a_model_what_is_read_later() -> None:
    assert model_files(NAMES) == ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]


def test_one_in_parts() -> None:
    whole = [*NAMES[:4], *PARTS, "onnx/model-00001-of-00002.safetensors", "consolidated.safetensors"]
    assert model_files(whole) == [*NAMES[1:4], PARTS[2], *PARTS[:2]]


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
    assert tokenizer_files(NAMES) == ["tokenizer.json", "tokenizer_config.json"]
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
    monkeypatch.setattr(fetching, "MOST_FILES", 2)
    with pytest.raises(Problem, match=r"E396.*3 files"):
        text_files(["1.txt", "2.txt", "3.txt"], "*.txt", "a/b")


@pytest.mark.parametrize(("names", "pattern"), [(["README.md", "a.csv"], ""), (["a.txt"], "b*"), ([], "")])
def test_nothing_to_read(names: list[str], pattern: str) -> None:
    with pytest.raises(Problem, match="E398"):
        text_files(names, pattern, "a/b")


MOST = 1 << 30
ROWS = {"data/train-0.parquet": b"PAR1" + bytes(range(256)) * 40, "data/train-1.parquet": b"PAR1" + b"y" * 3000}
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{" + b" " * 5000 + b"}",
    "model.safetensors": bytes(range(256)) * 99,
    "README.md": b"# A model",
}


def texts(hub: Hub, files: str = "") -> Wanted:
    return Wanted(repository="amina/proverbs", endpoint=hub.url, kind="dataset", files=files)


def model(hub: Hub) -> Wanted:
    return Wanted(repository="amina/words", endpoint=hub.url, kind="model")


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_texts_are_looked_at_and_fetched_in_their_order(hub: Hub, tmp_path: Path) -> None:
    repository = hub.put_files("datasets/amina/proverbs", {**ROWS, "data/test-0.parquet": b"PAR1"})
    repository.licence = "cc-by-sa-4.0"
    found = look(texts(hub), "", most=MOST)
    sizes = sum(map(len, ROWS.values()))
    assert (found.commit, found.size, found.count, found.licence) == (repository.head, sizes, 2, "cc-by-sa-4.0")
    fetched = fetch(texts(hub), found.commit, tmp_path / "text", "", most=MOST)
    assert held(tmp_path / "text") == dict(zip(("00000", "00001"), ROWS.values(), strict=True))
    lines = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(held(tmp_path / "text").items())
    )
    assert fetched.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert hub.authorizations == set(), "without a token nothing is shown"


def test_one_file_has_its_own_digest(hub: Hub, tmp_path: Path) -> None:
    hub.put_files("datasets/amina/proverbs", {"a.txt": b"Many hands", "empty.md": b""})
    found = look(texts(hub), "", most=MOST)
    fetched = fetch(texts(hub), found.commit, tmp_path / "text", "", most=MOST)
    assert fetched.sha256 == hashlib.sha256(b"Many hands").hexdigest()


def test_a_model_keeps_its_names(hub: Hub, tmp_path: Path) -> None:
    hub.put_files("amina/words", MODEL).licence = ["mit", "apache-2.0"]
    found = look(model(hub), "", most=MOST)
    assert found.licence == "mit, apache-2.0"
    fetch(model(hub), found.commit, tmp_path / "model", "", most=MOST)
    assert held(tmp_path / "model") == {name: content for name, content in MODEL.items() if name != "README.md"}


def test_inspected_commit_is_fetched_despite_a_newer_one(hub: Hub, tmp_path: Path) -> None:
    hub.put_files("datasets/amina/proverbs", {"a.txt": b"first"})
    found = look(texts(hub), "", most=MOST)
    hub.put_files("datasets/amina/proverbs", {"a.txt": b"second"})
    fetch(texts(hub), found.commit, tmp_path / "text", "", most=MOST)
    assert held(tmp_path / "text") == {"00000": b"first"}


def test_rows_that_the_hub_alone_has_as_parquet(hub: Hub, tmp_path: Path) -> None:
    hub.put_files("datasets/amina/proverbs", {"proverbs.csv": b"text\nMany hands\n"})
    hub.put_files("datasets/amina/proverbs", {"default/train/0000.parquet": b"PAR1rows"}, "refs/convert/parquet")
    found = look(texts(hub), "", most=MOST)
    fetch(texts(hub), found.commit, tmp_path / "text", "", most=MOST)
    assert held(tmp_path / "text") == {"00000": b"PAR1rows"}


def test_without_such_a_copy_there_are_none(hub: Hub) -> None:
    hub.put_files("datasets/amina/proverbs", {"proverbs.csv": b"text\nMany hands\n"})
    with pytest.raises(Problem, match="E398"):
        look(texts(hub), "", most=MOST)


def test_a_try_goes_on_where_the_one_before_has_ended(hub: Hub, tmp_path: Path) -> None:
    content = bytes(range(256)) * 64
    hub.put_files("datasets/amina/proverbs", {"a.parquet": content})
    found = look(texts(hub), "", most=MOST)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "00000").write_bytes(content[:10_000])
    hub.sent = 0
    fetch(texts(hub), found.commit, tmp_path / "text", "", most=MOST)
    assert held(tmp_path / "text") == {"00000": content}
    assert hub.sent == len(content) - 10_000
    fetch(texts(hub), found.commit, tmp_path / "text", "", most=MOST)
    assert hub.sent == len(content) - 10_000, "what is there is asked for no more"


@pytest.mark.parametrize("ignores", [False, True], ids=["ranges", "no ranges"])
def test_connections_that_are_cut_cost_what_was_under_way(hub: Hub, tmp_path: Path, *, ignores: bool) -> None:
    content = bytes(range(256)) * 64
    hub.put_files("datasets/amina/proverbs", {"a.parquet": content})
    hub.cut_after, hub.ignores_ranges = 5000, ignores
    if ignores:
        with pytest.raises(Problem, match="E346"):
            fetch(texts(hub), hub.repositories["datasets/amina/proverbs"].head, tmp_path / "t", "", most=MOST)
        hub.cut_after = 0
    fetch(texts(hub), hub.repositories["datasets/amina/proverbs"].head, tmp_path / "t", "", most=MOST)
    assert held(tmp_path / "t") == {"00000": content}


@pytest.mark.parametrize("seed", range(5))
def test_a_hub_that_fails_half_of_its_calls(hub: Hub, tmp_path: Path, seed: int) -> None:
    hub.put_files("amina/words", MODEL)
    hub.chance.seed(seed)
    hub.failing, hub.most_in_a_row = 0.5, 3
    found = look(model(hub), "", most=MOST)
    for _ in range(10):
        if is_fetched(model(hub), found.commit, tmp_path / "model"):
            break
    assert held(tmp_path / "model") == {name: content for name, content in MODEL.items() if name != "README.md"}


def is_fetched(wanted: Wanted, commit: str, folder: Path) -> bool:
    """Try one fetch. Return False if the Hub is unavailable, and raise any other error."""
    try:
        fetch(wanted, commit, folder, "", most=MOST)
    except Problem as problem:
        if problem.fault.code != "E346":
            raise
        return False
    return True


def test_other_bytes_than_were_listed_are_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.put_files("datasets/amina/proverbs", ROWS)
    hub.damaged = {"data/train-0.parquet": ROWS["data/train-0.parquet"][:-1] + b"\0"}
    head = hub.repositories["datasets/amina/proverbs"].head
    with pytest.raises(Problem, match=r"E399.*train-0"):
        fetch(texts(hub), head, tmp_path / "text", "", most=MOST)
    assert held(tmp_path / "text") == {}
    hub.damaged = {}
    fetch(texts(hub), head, tmp_path / "text", "", most=MOST)
    assert len(held(tmp_path / "text")) == 2


def test_no_more_is_read_than_was_listed(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.put_files("datasets/amina/proverbs", {"a.txt": b"x" * 5000})
    hub.damaged = {"a.txt": b"x" * 20_000_000}
    sizes: list[int] = []
    monkeypatch.setattr(fetching, "is_same", lambda path, _: sizes.append(path.stat().st_size))
    with pytest.raises(Problem, match="E399"):
        fetch(texts(hub), hub.repositories["datasets/amina/proverbs"].head, tmp_path / "text", "", most=MOST)
    assert 5000 < sizes[0] < 2_000_000, "but for the last piece"


def test_more_than_is_taken(hub: Hub, tmp_path: Path) -> None:
    hub.put_files("amina/words", {**MODEL, "model.safetensors": b"x" * 3_000_000})
    with pytest.raises(Problem, match="E304"):
        look(model(hub), "", most=2_000_000)
    with pytest.raises(Problem, match="E399"):
        fetch(model(hub), hub.repositories["amina/words"].head, tmp_path / "model", "", most=2_000_000)
    assert held(tmp_path / "model") == {}


def test_names_that_there_are_not_and_those_that_are_not_shown(hub: Hub) -> None:
    hub.account("amina", "hf_of_amina")
    with pytest.raises(Problem, match=r"E397.*no dataset amina/proverbs"):
        look(texts(hub), "", most=MOST)
    with pytest.raises(Problem, match="E348"):
        look(Wanted(repository="../words", endpoint=hub.url, kind="model"), "", most=MOST)
    repository = hub.put_files("amina/words", MODEL)
    repository.private = True
    with pytest.raises(Problem, match="E397"):
        look(model(hub), "", most=MOST)
    assert look(model(hub), "hf_of_amina", most=MOST).count == 3
    repository.private, repository.gated = False, True
    with pytest.raises(Problem, match="E453"):
        look(model(hub), "hf_of_amina", most=MOST)


def test_a_hub_that_is_away() -> None:
    with pytest.raises(Problem, match="E346"):
        look(Wanted(repository="a/b", endpoint="http://127.0.0.1:9", kind="model"), "", most=MOST)


def test_the_client_shows_no_token_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_machine")
    assert hub_client.api_of("", "http://127.0.0.1:9").token is False
