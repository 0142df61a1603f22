"""`manage.py inspect`: the verdict on files in a terminal, its exit status, and the JSON object on its last line."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from PIL import Image

from peer_agent.protocol.errors import Problem
from peer_agent.site_work.inspecting import inspect
from tests.site_work.intake.made import codes_of, json_lines, passage, passages, put, tarred, zipped
from tests.site_work.tars import png


def halves(left: int, right: int) -> bytes:
    """Return an image of two grey halves."""
    content = io.BytesIO()
    Image.fromarray(np.repeat([[left, right]], 10, axis=0).repeat(5, axis=1).astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


ROOT = Path(__file__).parents[3]
KEYS = {
    "format", "field", "fields", "rows", "left_out", "repeats", "heldout_overlap", "tokens", "classes", "pieces",
    "findings",
}  # fmt: skip
ROWS = [{"text": text, "title": passage(n + 500, 4)} for n, text in enumerate(passages(60))]
PICTURES = {f"{name}/{n}.png": halves(9 * n, shade) for name, shade in (("a", 9), ("b", 99)) for n in range(15)}


def inspected(*arguments: str | Path) -> tuple[int, list[str], Any]:
    """Run the command in this process. Return its status, its lines, and the object on the last one."""
    out, status = io.StringIO(), 0
    try:
        call_command("inspect", *map(str, arguments), stdout=out, stderr=out)
    except SystemExit as ended:
        status = int(str(ended.code))
    lines = out.getvalue().splitlines()
    return status, lines, json.loads(lines[-1]) if status != 2 else None


def test_plain_rows_end_with_status_0(tmp_path: Path) -> None:
    status, lines, told = inspected(put(tmp_path, "a.jsonl", json_lines(*ROWS, {"id": 1})))
    assert status == 0
    assert told.keys() >= KEYS
    assert (told["format"], told["field"], told["rows"], told["left_out"]) == ("JSON", "text", 61, {"without text": 1})
    assert [field["name"] for field in told["fields"]] == ["text", "title"]
    assert told["tokens"] > 1000
    assert (told["repeats"], told["heldout_overlap"], told["classes"], told["findings"]) == (0, 0, {}, [])
    assert len(told["pieces"]) == 5
    words = "\n".join(lines[:-1])
    for part in (
        "Field        text",
        "Rows         61, 0 of them repeats",
        "Left out     1 without text",
        "Held out     0.0",
    ):
        assert part in words


def test_images_are_recognised_and_measured(tmp_path: Path) -> None:
    status, lines, told = inspected(put(tmp_path, "a.tar", tarred(PICTURES)))
    assert status == 0
    assert told.keys() >= KEYS
    assert told["classes"] == {"a": 15, "b": 15}
    assert [{*each} for each in told["pieces"]] == [{"class", "mean", "deviation"}] * 2
    assert "Class        a: 15" in lines


@pytest.mark.parametrize(
    ("name", "content", "code", "severity"),
    [
        ("a.jsonl", json_lines(*({"one": text, "two": text} for text in passages(60))), "E429", "question"),
        ("a.pdf", b"%PDF-1.7", "E424", "refusal"),
        ("short.txt", b"Two words.", "E317", "refusal"),
    ],
)
def test_a_question_or_a_refusal_ends_with_status_1(
    tmp_path: Path, name: str, content: bytes, code: str, severity: str
) -> None:
    status, lines, told = inspected(put(tmp_path, name, content))
    assert status == 1
    assert told.keys() >= KEYS
    assert [(found["code"], found["severity"]) for found in told["findings"]] == [(code, severity)]
    assert lines[0].startswith({"question": "? ", "refusal": "✗ "}[severity])


def test_a_missing_file_ends_with_status_2(tmp_path: Path) -> None:
    status, lines, _ = inspected(tmp_path / "nothing.txt")
    assert (status, lines) == (2, [f"There is no file {tmp_path / 'nothing.txt'}."])


def test_a_field_a_recipe_and_several_files_may_be_given(tmp_path: Path) -> None:
    paths = [put(tmp_path, name, json_lines(*rows)) for name, rows in (("a.jsonl", ROWS[:30]), ("b.jsonl", ROWS[30:]))]
    _, lines, told = inspected(*paths, "--field", "title", "--recipe", "masked_lm", "--json")
    assert len(lines) == 1
    assert (told["field"], told["rows"]) == ("title; text", 60)
    status, _, told = inspected(paths[0], "--recipe", "image_classification")
    assert (status, told["findings"][0]["code"]) == (1, "E380")
    with pytest.raises(CommandError, match="recipe"):
        inspected(paths[0], "--recipe", "nothing")
    with pytest.raises(Problem, match="E301"):
        inspect(paths, "nothing")


def test_a_recipe_that_adapts_a_model_needs_no_model(tmp_path: Path) -> None:
    verdict = inspect([put(tmp_path, "a.jsonl", json_lines(*ROWS))], "finetune_lora")
    assert (verdict.field, codes_of(verdict)) == ("text", [])


def test_a_folder_may_have_files_of_its_file_system(tmp_path: Path) -> None:
    put(tmp_path / "books", "a.txt", "\n\n".join(passages(60)))
    put(tmp_path / "books", ".DS_Store", b"\0\0\0\1Bud1" + bytes(99))
    assert codes_of(inspect([tmp_path / "books"])) == []


def test_a_folder_of_images_is_read_as_their_archive(tmp_path: Path) -> None:
    for name, content in PICTURES.items():
        put(tmp_path / "set" / Path(name).parent, Path(name).name, content)
    status, _, told = inspected(tmp_path / "set")
    assert (status, told) == inspected(put(tmp_path, "set.tar", tarred(PICTURES)))[::2]


def test_an_archive_of_notes_and_pictures_is_one_of_texts(tmp_path: Path) -> None:
    files = {f"{n}.txt": text.encode() for n, text in enumerate(passages(60))} | {"cover.png": png()}
    verdict = inspect([put(tmp_path, "a.zip", zipped(files))])
    assert (verdict.format, verdict.left_out) == ("plain text, 60 files", {"not opened": 1})


@pytest.mark.check
def test_it_needs_no_database_and_no_site(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", json_lines(*ROWS))
    environment = {**os.environ, "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "MANYHANDS_DATA": str(tmp_path)}
    command = [sys.executable, str(ROOT / "manage.py"), "inspect", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["field"] == "text"
