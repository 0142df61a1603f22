"""Data that look right and are not. The organizer is asked, or the data are refused: nothing is learned in silence."""

import csv
import io
import json
import quopri
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from peer_agent.site_work.inspecting import inspect
from tests.site_work.intake.made import codes_of, json_lines, passages, put, table, tarred, zipped
from tests.site_work.intake.test_brought import require_words

TEXTS = passages(60)
NUMBERED = [[str(number), text] for number, text in enumerate(TEXTS)]
LINES = json_lines(*({"text": text} for text in TEXTS))


def picture(number: int, side: int = 16) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def folders(*names: str, each: int = 12) -> dict[str, bytes]:
    return {f"{name}/{n}.png": picture(100 * place + n) for place, name in enumerate(names) for n in range(each)}


def cells(rows: list[list[str]], **options: Any) -> str:
    file = io.StringIO()
    csv.writer(file, **options).writerows(rows)
    return file.getvalue()


ASKED: dict[str, tuple[bytes | str, str]] = {
    # classes and parts of images
    "genus.zip": (zipped(folders("Pinus/alba", "Quercus/alba", "Salix/nigra")), "E455"),
    "years.zip": (zipped(folders("cat/2020", "cat/2021", "dog/2020")), "E455"),
    "case.zip": (zipped(folders("Cat", "cat", "dog")), "E460"),
    "stray.zip": (zipped(folders("cat", "dog") | {"cover/1.png": picture(7)}), "E460"),
    "no_train.zip": (zipped(folders("cat", "dog", "val")), "E446"),
    "unlabelled.zip": (zipped(folders("train/cat", "train/dog") | folders("test", each=20)), "E444"),
    "other_class.zip": (zipped(folders("train/cat", "train/cow", "val/dog")), "E462"),
    # parts of texts
    "beside.zip": (zipped({"corpus.jsonl": LINES, "test.jsonl": LINES}), "E446"),
    "column.csv": (
        cells([["text", "part"], *([text, ("train", "test")[n % 2]] for n, text in enumerate(TEXTS))]),
        "E456",
    ),
    "broken_val.zip": (zipped({"train.jsonl": LINES, "val.jsonl": b"{oops}\n" * 50 + LINES[:3000]}), "E444"),
    "other_val.zip": (zipped({"train.jsonl": LINES, "val.jsonl": json_lines({"label": "x y z " * 9})}), "E462"),
    # fields
    "title.jsonl": (json_lines(*({"content": text[:60], "body": text} for text in TEXTS)), "E429"),
    "dpo.jsonl": (
        json_lines(
            *(
                {"rejected": [{"role": "user", "content": text}], "chosen": [{"role": "user", "content": text * 2}]}
                for text in TEXTS
            )
        ),
        "E429",
    ),
    "image_parts.jsonl": (
        json_lines(
            *(
                {"id": f"talk-{n}", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
                for n in range(60)
            )
        ),
        "E458",
    ),
    "ids.jsonl": (json_lines(*({"id": f"row-{n:05d}-abcdef"} for n in range(900))), "E459"),
    "mixed.jsonl": (json_lines(*({"text": t} if n % 2 else {"body": t} for n, t in enumerate(TEXTS))), "E438"),
    "books.zip": (zipped({**{f"{n}.txt": t.encode() for n, t in enumerate(TEXTS)}, "index.jsonl": LINES}), "E461"),
    # tables named as texts
    "comma.txt": (cells([["id", "text"], *NUMBERED]), "E464"),
    "tabs.txt": ("".join(f"{number}\t{text}\t\n" for number, text in NUMBERED), "E464"),
    "quoted": (cells([["text", "label"], *([f'"{t},\nand on', "a"] for t in TEXTS)], delimiter=";"), "E464"),
    "table.tar": (tarred({"set/rows.dat": cells(NUMBERED).encode()}), "E464"),
    # characters
    "hz.txt": ("\n\n".join(f"{t} 中文。" for t in TEXTS).encode("hz"), "E465"),
    "utf7.txt": ("\n\n".join(f"{t} café, naïve" for t in TEXTS).encode("utf-7"), "E465"),
    "utf7_kana.txt": ("\n\n".join(f"{t} かな" for t in TEXTS).encode("utf-7"), "E465"),
    "letter.txt": (quopri.encodestring("\n\n".join(f"{t} café" for t in TEXTS).encode()), "E465"),
    "english.eml": (quopri.encodestring("\n\n".join(TEXTS).encode()), "E465"),
    "jis.txt": ("\n\n".join(f"{t} かなかな" for t in TEXTS).encode("iso2022_jp"), "E465"),
    "escaped.txt": (json.dumps("\n\n".join(f"{t} café" for t in TEXTS)).replace("\\n", "\n"), "E465"),
    "letters.jsonl": (
        json_lines(*({"text": quopri.encodestring(f"{t} œuvre".encode()).decode()} for t in TEXTS)),
        "E465",
    ),
    "mojibake.txt": ("\n\n".join(TEXTS) + "мельница на реке ".encode().decode("cp1252", "replace") * 200, "E432"),
    "reviews.txt": ("<br />".join(TEXTS * 2), "E433"),
    "pdfs.zip": (zipped({"a.txt": "\n".join(TEXTS).encode(), **{f"{n}.pdf": b"%PDF-1.7" for n in range(9)}}), "E444"),
}
REFUSED: dict[str, tuple[bytes | str, str]] = {
    "lists.json": (json.dumps({"train": [{"text": t} for t in TEXTS], "test": [{"text": "t"}] * 90}), "E457"),
    "flat.zip": (zipped({f"train/{n}.png": picture(n) for n in range(20)}), "E380"),
    "documents.zip": (zipped({f"{n}.pdf": b"%PDF-1.7" for n in range(9)}), "E424"),
    "cut.tar": (tarred({"a.txt": b"words " * 900})[:3000], "E378"),
}
READ: dict[str, tuple[bytes | str, str, int]] = {
    "imdb.zip": (zipped({"imdb_train.jsonl": LINES, "imdb_test.jsonl": json_lines({"text": "w " * 999})}), "text", 60),
    "sep.csv": (
        "sep=;\n" + cells([["n", "text"], *([str(n), t] for n, t in enumerate(TEXTS))], delimiter=";"),
        "text",
        60,
    ),
    "commas.csv": (cells([["Text, clean", "label"], *([t, "a"] for t in TEXTS)], delimiter=";"), "Text, clean", 60),
    "quotes.tsv": ("n\ttext\n" + "".join(f'{n}\t"{t}\n' for n, t in enumerate(TEXTS)), "text", 60),
    "pandas.csv": (cells([["", "text"], *NUMBERED]), "text", 60),
    "named_rows.json": (json.dumps({f"doc {n}": {"text": t} for n, t in enumerate(TEXTS)}), "text", 60),
    "lists_of_lists.jsonl": (json_lines(*({"id": "a-1", "parts": [[t], [t]]} for t in TEXTS)), "parts", 60),
    "latin1.parquet": (
        table(pa.table({"text": pa.array([t.encode() + b" caf\xe9" for t in TEXTS]).view(pa.string())})),
        "text",
        60,
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_organizer_is_asked(tmp_path: Path, name: str) -> None:
    content, code = ASKED[name]
    verdict = inspect([put(tmp_path, name, content)])
    assert code in {found.code for found in verdict.findings if found.severity == "question"}
    require_words(verdict)


def test_a_part_set_aside_that_cannot_be_read_is_not_held_out(tmp_path: Path) -> None:
    verdict = inspect([put(tmp_path, "a.zip", ASKED["other_val.zip"][0])])
    assert (verdict.heldout, codes_of(verdict)) == ("", ["E462"])


PLAIN = {
    "verse.txt": "\n".join(f"{text[:20]}, {text[20:40]}" for text in TEXTS[:9]),
    "lines.txt": "\n".join(f"{text[: n % 50]}, {', '.join(text.split()[: n % 5])}" for n, text in enumerate(TEXTS * 3)),
    "sums.py": "\n".join(f"total=first+other+variable+{text.split()[0]}-1" for text in TEXTS),
    "calls.txt": "\n".join(f"{text} Ring +4916{number:07d} or +1-541-7543010." for number, text in enumerate(TEXTS)),
    "shell.txt": "\n".join(
        f"width=20 height=3D{text}" if n == 5 else f"width=20 {text}" for n, text in enumerate(TEXTS)
    ),
    "tex.txt": "\n".join(f"{text} see~{{ref}}~\\upsilon" for text in TEXTS),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_usual_text_is_neither_a_table_nor_escaped(tmp_path: Path, name: str) -> None:
    assert codes_of(inspect([put(tmp_path, name, PLAIN[name])])) == []


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_number(tmp_path: Path, name: str) -> None:
    content, code = REFUSED[name]
    assert codes_of(inspect([put(tmp_path, name, content)])) == [code]


@pytest.mark.parametrize("name", READ)
def test_it_is_read_as_it_was_meant(tmp_path: Path, name: str) -> None:
    content, field, rows = READ[name]
    verdict = inspect([put(tmp_path, name, content)])
    assert (verdict.field, verdict.rows, sum(verdict.left_out.values())) == (field, rows, 0)


def test_large_image_is_decoded_in_little_memory(tmp_path: Path) -> None:
    """A small file may hold an image of 64 million pixels."""
    content = io.BytesIO()
    Image.fromarray(np.zeros((4000, 4000), np.uint16) + np.arange(4000, dtype=np.uint16)).save(content, "PNG")
    images = {f"{name}/{n}.png": picture(n) for name in ("a", "b") for n in range(2)} | {
        "a/large.png": content.getvalue()
    }
    verdict = inspect([put(tmp_path, "a.zip", zipped(images))], "image_classification")
    assert verdict.classes == {"a": 3, "b": 2}


def test_value_for_no_data_does_not_hide_the_rest(tmp_path: Path) -> None:
    images: Mapping[str, bytes] = {f"{name}/{n}.tif": relief(n) for name in ("a", "b") for n in range(12)}
    (first, _) = inspect([put(tmp_path, "a.zip", zipped(images))]).pieces
    assert not isinstance(first, str)
    assert first.deviation > 40


def relief(number: int) -> bytes:
    """Return heights in metres, with -9999 where nothing was measured."""
    heights = np.random.default_rng(number).uniform(100, 200, (32, 32)).astype(np.float32)
    heights[0, 0] = -9999
    content = io.BytesIO()
    Image.fromarray(heights).save(content, "TIFF")
    return content.getvalue()
