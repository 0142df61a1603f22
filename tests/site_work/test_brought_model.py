"""Models uploaded by users: the zip contents that are accepted or refused, with the error messages."""

import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.site_work.brought_model import read_base
from tests.recipes.finetune_lora.small_base import change, model_folder, zipped


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def refused(archive: Path, tmp_path: Path, code: str, words: str = "") -> None:
    with pytest.raises(Problem, match=rf"{code}.*{words}"):
        read_base(archive, Path(tempfile.mkdtemp(dir=tmp_path)) / "out")


def test_what_it_is_is_read(folder: Path, tmp_path: Path) -> None:
    base, end, template = read_base(zipped(folder), tmp_path / "out")
    assert (base.family, base.layers, base.width, base.heads, base.kv_heads, base.head) == ("llama", 2, 32, 4, 2, 8)
    assert (base.context, base.is_tied, end) == (48, False, 0)
    assert base.file is not None
    path = tmp_path / "out" / "model" / f"{base.file.digest}.safetensors"
    assert path.stat().st_size == base.file.size
    assert load_file(path).keys() == load_file(folder / "model.safetensors").keys()
    assert [path.name for path in (tmp_path / "out" / "model").iterdir()] == [path.name], "and nothing else is left"
    assert read_base(zipped(folder, inside=""), tmp_path / "again") == (base, end, template), (
        "wherever it lies in the archive"
    )


def test_a_folder_is_read_as_its_zip_is(folder: Path, tmp_path: Path) -> None:
    assert read_base(folder, tmp_path / "out") == read_base(zipped(folder), tmp_path / "again")
    assert (folder / "model.safetensors").exists(), "it stays as it is"
    (folder / "config.json").unlink()
    refused(folder, tmp_path, "E388", "config.json")


def test_links_in_a_folder_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").rename(tmp_path / "elsewhere")
    (folder / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    refused(folder, tmp_path, "E388", "tokenizer.json")


def test_parts_with_an_index_are_put_together(folder: Path, tmp_path: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts: dict[str, dict[str, torch.Tensor]] = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (name, tensor) in enumerate(whole.items()):
        parts["ab"[number % 2] + ".safetensors"][name] = tensor.bfloat16()
    for name, tensors in parts.items():
        save_file(tensors, folder / name)
    index = {name: part for part, tensors in parts.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    base, *_ = read_base(zipped(folder), tmp_path / "out")
    assert base.file is not None
    found = load_file(tmp_path / "out" / "model" / f"{base.file.digest}.safetensors")
    assert found.keys() == whole.keys()
    assert all(tensor.dtype == torch.bfloat16 for tensor in found.values()), "as it was brought"
    (folder / "b.safetensors").unlink()
    refused(zipped(folder), tmp_path, "E388", "b.safetensors is missing")


CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    "written",
    [
        {"tokenizer_config.json": {"chat_template": CHAT}},
        {
            "tokenizer_config.json": {
                "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHAT}]
            }
        },
        {"tokenizer_config.json": {"chat_template": "older"}, "chat_template.jinja": CHAT},
    ],
)
def test_its_chat_template_is_kept(folder: Path, tmp_path: Path, written: dict[str, Any]) -> None:
    for name, content in written.items():
        if isinstance(content, str):
            (folder / name).write_text(content)
        else:
            change(folder / name, content)
    read = read_base(zipped(folder), tmp_path / "out")
    assert read.template.source == CHAT
    assert read.template.special["eos_token"] == "<|endoftext|>"
    released = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert released.chat_template == CHAT, "a release has it too"


@pytest.mark.parametrize("setting", [None, 5, [], ["default"], [{"name": "other", "template": CHAT}]])
def test_one_that_is_none_is_left_out(folder: Path, tmp_path: Path, setting: Any) -> None:
    change(folder / "tokenizer_config.json", {"chat_template": setting})
    assert read_base(zipped(folder), tmp_path / "out").template.source == ""
    assert "chat_template" not in (tmp_path / "out" / "tokenizer" / "tokenizer_config.json").read_text()


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"auto_map": {"AutoModel": "evil.py"}}, "E390", "needs custom code"),
        ({"model_type": "mamba"}, "E390", "mamba"),
        ({"model_type": ["llama"]}, "E390", ""),
        ({"quantization_config": {"bits": 4}}, "E390", "quantized"),
        ({"num_hidden_layers": 3}, "E391", "missing or of another shape"),
        ({"hidden_size": 64}, "E391", ""),
        ({"num_hidden_layers": 100_000}, "E391", "more than 512"),
        ({"num_hidden_layers": 1 << 40}, "E391", ""),
        ({"num_attention_heads": 0}, "E391", ""),
        ({"hidden_size": "wide"}, "E391", ""),
        ({"vocab_size": 9}, "E391", "tokenizer has"),
        ({"eos_token_id": None}, "", ""),
    ],
)
def test_what_a_configuration_says_is_bounded(
    folder: Path, tmp_path: Path, changes: dict[str, Any], code: str, words: str
) -> None:
    change(folder / "config.json", changes)
    if code:
        refused(zipped(folder), tmp_path, code, words)
    else:
        assert read_base(zipped(folder), tmp_path / "out").end == 0, "the tokenizer says it too"


def test_without_a_token_that_ends_a_text_there_is_no_text(folder: Path, tmp_path: Path) -> None:
    change(folder / "config.json", {"eos_token_id": 10**6})
    change(folder / "tokenizer_config.json", {"eos_token": "<nothing>"})
    refused(zipped(folder), tmp_path, "E391", "ends a text")


def test_pickles_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(zipped(folder), tmp_path, "E389")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_what_is_missing_is_named(folder: Path, tmp_path: Path, missing: str) -> None:
    refused(zipped(folder, without=missing), tmp_path, "E388", missing)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("config.json", b"{", "E388"),
        ("config.json", b"[" * 100_000, "E388"),
        ("config.json", b"[]", "E388"),
        ("config.json", b"\xff\xfe", "E388"),
        ("tokenizer.json", b"{}", "E391"),
        ("model.safetensors", b"\x00" * 64, "E388"),
    ],
)
def test_files_that_are_not_what_they_are_called(
    folder: Path, tmp_path: Path, name: str, content: bytes, code: str
) -> None:
    (folder / name).write_bytes(content)
    refused(zipped(folder), tmp_path, code)


def test_no_zip_and_half_a_zip(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder)
    archive.write_bytes(archive.read_bytes()[:-2000])
    refused(archive, tmp_path, "E388")
    archive.write_bytes(b"hello")
    refused(archive, tmp_path, "E388")


def test_a_way_of_packing_that_nobody_knows(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder)
    content = bytearray(archive.read_bytes())
    for signature, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = content.find(signature)
        while at >= 0:
            content[at + method] = 98
            at = content.find(signature, at + 1)
    archive.write_bytes(content)
    refused(archive, tmp_path, "E388")


def test_what_was_packed_and_is_spoiled(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder, without="config.json")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.write(folder / "config.json", "model/config.json")
        start = packed.getinfo("model/config.json").header_offset + 30 + len("model/config.json")
    content = bytearray(archive.read_bytes())
    content[start : start + 8] = b"\xff" * 8
    archive.write_bytes(content)
    refused(archive, tmp_path, "E388")


def test_names_that_lead_out_of_the_archive_write_nothing_there(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../../../evil"}}))
    (folder / "model.safetensors").unlink()
    archive = zipped(folder)
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("../../evil", b"x")
    refused(archive, tmp_path, "E388", "evil is missing")
    assert not list(tmp_path.parent.glob("evil*"))


def test_a_json_of_a_gigabyte_is_not_read(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder, without="config.json")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("model/config.json", b" " * (8 << 20))
    refused(archive, tmp_path, "E388", "larger than 4 MB")


def test_parameters_packed_a_thousandfold_are_not_unpacked(folder: Path, tmp_path: Path) -> None:
    archive = zipped(folder, without="model.safetensors")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("model/model.safetensors", bytes(4 << 20))
    refused(archive, tmp_path, "E388", "packed as parameters cannot be")


def test_code_in_a_tokenizers_settings_is_left_behind(folder: Path, tmp_path: Path) -> None:
    change(
        folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": "evil.Tokenizer"}, "tokenizer_class": "Evil"}
    )
    read_base(zipped(folder), tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "tokenizer" / "tokenizer_config.json").read_text())
    assert kept["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "auto_map" not in kept
