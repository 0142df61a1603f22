"""Files as people bring them: each is learned as it was meant, asked about, or refused by number. Every input comes
from a public report of a problem.
"""

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image

from peer_agent.publishing.documents import cut_documents
from peer_agent.site_work.inspecting import inspect
from peer_agent.site_work.intake.texts import FORMATS
from peer_agent.site_work.intake.verdict import Pixels, Verdict, in_words
from tests.site_work.intake.made import codes_of, json_lines, passage, passages, put, table, tarred, zipped
from tests.site_work.tars import entry_of

TEXTS = passages(60)
TEXT = "\n\n".join(TEXTS)
PARTS = len([*cut_documents([TEXT])])
ROWS = [{"text": text} for text in TEXTS]
LATE = [{"id": f"doc-{number:07d}", "text": None} for number in range(120)]
EMOJI = "שלום עולם مرحبا بالعالم 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ❤️‍🔥 \u202eabc\u202c"
SCRIPTS = "\n".join(f"{EMOJI} {text}" for text in TEXTS)


def separated(rows: list[list[Any]], **options: Any) -> bytes:
    file = io.StringIO()
    csv.writer(file, **options).writerows(rows)
    return file.getvalue().encode()


def said(*turns: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more} for role, content in turns]}


def column(values: Any) -> bytes:
    return table(pa.table({"text": values}))


class Learned:
    """The verdict that a learned source must get. `piece`: words at the start of one of the shown texts."""

    def __init__(
        self,
        field: str = "text",
        rows: int = 60,
        *,
        left_out: dict[str, int] | None = None,
        asked: tuple[str, ...] = (),
        piece: str = "",
        held: str = "",
    ) -> None:
        self.field, self.rows, self.left_out, self.asked = field, rows, left_out or {}, asked
        self.piece, self.held = piece, held


Expected = Learned | str  # or the number of the refusal
TEXT_FILES: dict[str, tuple[bytes, Expected]] = {
    "bom.jsonl": (b"\xef\xbb\xbf" + json_lines(*ROWS), Learned()),
    "u2028.jsonl": (json_lines(*({"text": f"{text}\u2028and\x85end"} for text in TEXTS)), Learned()),
    "nan.jsonl": (b"".join(b'{"text": "%s", "score": NaN, "url": null}\n' % t.encode() for t in TEXTS), Learned()),
    "array_pretty.json": (
        json.dumps([{"instruction": passage(n, 9), "input": "", "output": text} for n, text in enumerate(TEXTS)],
                   indent=2).encode(),
        Learned("output", asked=("E429",)),
    ),
    "array_lines.json": (b"[\n" + b",\n".join(json_lines(*ROWS).splitlines()) + b"\n]\n", Learned()),
    "late_text.jsonl": (
        json_lines(*({"id": row["id"], "title": passage(n, 5), "text": ""} for n, row in enumerate(LATE)),
                   *({"id": "doc", "title": passage(n, 5), "text": text} for n, text in enumerate(TEXTS))),
        Learned(rows=180, left_out={"without text": 120}),
    ),
    "late_null.jsonl": (json_lines(*LATE, *ROWS), Learned(rows=180, left_out={"without text": 120})),
    "utf16_bom.txt": (TEXT.encode("utf-16"), Learned("", PARTS)),
    "utf16le.txt": (TEXT.encode("utf-16-le"), Learned("", PARTS)),
    "latin1.txt": (TEXT.replace("mill", "mühle").encode("latin-1"), Learned("", PARTS, asked=("E428",), piece="mühle")),
    "nul_runs.txt": (TEXT.replace(".", ".\0\0").encode(), Learned("", PARTS, asked=("E431",))),
    "crlf.txt": (TEXT.replace("\n", "\r\n").encode(), Learned("", PARTS)),
    "cr_only.txt": (TEXT.replace("\n", "\r").encode(), Learned("", PARTS)),
    "text.txt.gz": (gzip.compress(TEXT.encode(), mtime=0), Learned("", PARTS)),
    "text.jsonl.zst": (bytes(pa.Codec("zstd").compress(json_lines(*ROWS), asbytes=True)), Learned()),
    "text.zip": (zipped({"notes/a.txt": TEXT.encode()}), Learned("", PARTS)),
    "text.tar.gz": (tarred({"a.txt": TEXT.encode()}, "w:gz"), Learned("", PARTS)),
    "texts_plain.tar": (tarred({f"books/{n}.txt": text.encode() for n, text in enumerate(TEXTS)}), Learned("")),
    "table.csv": (separated([["id", "label", "text"], *([n, "AB"[n % 2], t] for n, t in enumerate(TEXTS))]), Learned()),
    "protein.txt": (
        np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)[np.random.default_rng(1).integers(0, 20, 60_000)].tobytes(),
        Learned("", 25),
    ),
    "rtl_emoji.txt": (SCRIPTS.encode(), Learned("", len([*cut_documents([SCRIPTS])]), piece="👩‍👩‍👧‍👦")),
    "tools.jsonl": (
        json_lines(*(said(("user", "Look."), ("assistant", None), ("tool", "ok"), ("assistant", t)) for t in TEXTS)),
        Learned("messages", piece="user: Look. "),
    ),
    "parts.jsonl": (
        json_lines(*(said(("user", [{"type": "text", "text": "Go on."}]), ("assistant", text)) for text in TEXTS)),
        Learned("messages", piece="user: Go on. assistant: "),
    ),
    "images.jsonl": (
        json_lines(*(said(("user", [{"type": "image", "url": "x"}])) for _ in range(20)),
                   *(said(("user", "Go on."), ("assistant", text)) for text in TEXTS)),
        Learned("messages", 80, left_out={"with parts that are not text": 20}),
    ),
    "dictionary.parquet": (column(pa.array(TEXTS).dictionary_encode()), Learned()),
    "binary.parquet": (column(pa.array([text.encode() for text in TEXTS], pa.binary())), Learned()),
    "struct.parquet": (
        column([{"en": text, "de": text[:9]} for text in TEXTS]), Learned("text.en"),
    ),
    "both.parquet": (
        column([{"en": text, "de": passage(n + 99)} for n, text in enumerate(TEXTS)]),
        Learned("text.de", asked=("E429",)),
    ),
    "lists.parquet": (column([text.split(" the ") for text in TEXTS]), Learned()),
    "zstd.parquet": (table(ROWS, compression="zstd"), Learned()),
    "late.parquet": (column([""] * 120 + TEXTS), Learned(rows=180, left_out={"without text": 120})),
    "two_schemas.zip": (
        zipped({"a.parquet": table([{"text": text, "n": 1} for text in TEXTS[:30]]),
                "b.parquet": table([{"text": text, "s": "x"} for text in TEXTS[30:]])}),
        Learned(),
    ),
    "split.zip": (
        zipped({"train.jsonl": json_lines(*ROWS), "test.jsonl": json_lines(*({"text": t} for t in passages(9, 99)))}),
        Learned(held="test"),
    ),
    "repeated.jsonl": (json_lines(*ROWS * 10), Learned(rows=600)),
    "numbers.parquet": (table([{"id": 1, "label": 0}] * 30), "E382"),
    "notes.json": (TEXT.encode(), "E427"),
    "paper.pdf": (b"%PDF-1.7" + bytes(500), "E424"),
    "novel.docx": (zipped({"word/document.xml": b"<x/>"}), "E424"),
    "noise.bin": (bytes(range(256)) * 40, "E424"),
    "short.txt": (b"Two words.", "E317"),
    "cut.txt.gz": (gzip.compress(TEXT.encode(), mtime=0)[:900], "E378"),
}  # fmt: skip
NOTES = {"E434", "E435", "E436", "E437", "E438"}


def require_words(verdict: Verdict) -> None:
    """Check that pages can translate the format and the reasons to leave something out."""
    for words in ({verdict.format, *verdict.left_out} - {"", *FORMATS.values()}) | {"plain text"}:
        assert in_words(words, "<{}>".format) != words


def require(verdict: Verdict, expected: Expected) -> None:
    if isinstance(expected, str):
        assert [(found.code, found.severity) for found in verdict.findings][-1] == (expected, "refusal")
        return
    assert [code for code in codes_of(verdict) if code not in NOTES] == [*expected.asked]
    assert (verdict.field, verdict.rows, verdict.left_out) == (expected.field, expected.rows, expected.left_out)
    assert (verdict.heldout, verdict.heldout_overlap) == (expected.held, 0)
    assert verdict.examples.keys() == verdict.left_out.keys()
    require_words(verdict)


@pytest.mark.parametrize("name", TEXT_FILES)
def test_texts_are_learned_as_they_were_meant(tmp_path: Path, name: str) -> None:
    content, expected = TEXT_FILES[name]
    verdict = inspect([put(tmp_path, name, content)])
    require(verdict, expected)
    if isinstance(expected, Learned):
        pieces = [piece for piece in verdict.pieces if isinstance(piece, str)]
        assert len(pieces) == 5
        assert any(expected.piece in piece for piece in pieces)
        shown = [piece.removeprefix(expected.piece).split("\u2028")[0][:60] for piece in pieces]
        usual = TEXT.replace("\n\n", " ").replace("mill", "mühle" if expected.piece == "mühle" else "mill")
        if name not in ("protein.txt", "rtl_emoji.txt", "both.parquet", "tools.jsonl", "images.jsonl", "lists.parquet"):
            assert all(piece in usual for piece in shown), "nothing but the texts"
        assert 1000 < verdict.tokens < 60_000


# Images

SIDE = 32


def pattern(seed: int) -> NDArray[np.float64]:
    """Return a grey picture: bars for even seeds, rings for odd ones, on patches. Its values are from 0 to 1."""
    chance = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    wave = x + chance.integers(9) if seed % 2 == 0 else np.hypot(x - 16 + chance.integers(5), y - 16)
    patches = chance.random((4, 4)).repeat(SIDE // 4, axis=0).repeat(SIDE // 4, axis=1)
    noise = chance.random((SIDE, SIDE))
    grey: NDArray[np.float64] = 0.05 + 0.6 * (np.sin(wave * 0.8) > 0) + 0.1 * noise + 0.2 * patches
    grey[0, 0], grey[-1, -1] = 0, 1
    return grey


def picture(seed: int, kind: str = "PNG", bits: int = 8, mode: str = "L", **options: Any) -> bytes:
    grey, file = pattern(seed), io.BytesIO()
    made = Image.fromarray((grey * 65535).astype(np.uint16) if bits == 16 else (grey * 255).astype(np.uint8))
    (made if bits == 16 else made.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def folders(
    names: tuple[str, ...] = ("cat", "dog"), suffix: str = "png", make: Callable[[int], bytes] = picture
) -> dict[str, bytes]:
    """Return 15 different pictures in each folder."""
    return {f"{name}/{n}.{suffix}": make(2 * n + place) for place, name in enumerate(names) for n in range(15)}


def upright() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def linked(kind: bytes) -> bytes:
    content = io.BytesIO(tarred(folders()))
    with tarfile.open(fileobj=content, mode="a") as archive:
        archive.addfile(entry_of("cat/copy.png", kind, "cat/0.png"))
    return content.getvalue()


def old(*names: str) -> bytes:
    """Return an archive with names in Latin 1, as `tar` writes them on an old system."""
    return tarred(folders(names), format=tarfile.GNU_FORMAT, encoding="latin-1")


LONG = "Animalia_Arthropoda_Insecta_Lepidoptera_Nymphalidae_Heliconius_"
PACKS = {
    **folders(),
    **{f"cat/._{n}.png": b"\x00\x05\x16\x07" for n in range(9)},
    "set/.DS_Store": b"x", "__MACOSX/cat/._1.png": b"x", "cat/Thumbs.db": b"x",
}  # fmt: skip
SPLIT = {**{f"data/train/{n}": d for n, d in folders().items()},
         **{f"data/test/{n}": d for n, d in folders(make=lambda seed: picture(seed + 100)).items()}}  # fmt: skip
CATS, LINKS = {"cat": 15, "dog": 15}, {"links and devices": 1}
ImageCase = tuple[bytes, dict[str, int] | str, dict[str, int], tuple[str, ...]]
IMAGE_FILES: dict[str, ImageCase] = {  # the archive, its classes or the refusal, what is left out, and what is told
    "shapes8.tar": (tarred(folders()), CATS, {}, ()),
    "gray16_png.tar": (tarred(folders(make=lambda seed: picture(seed, bits=16))), CATS, {}, ("E441",)),
    "gray16_tiff.tar": (tarred(folders(("cat", "dog"), "tif", lambda n: picture(n, "TIFF", 16))), CATS, {}, ("E441",)),
    "cmyk.tar": (tarred(folders(suffix="jpg", make=lambda seed: picture(seed, "JPEG", mode="CMYK"))), CATS, {}, ()),
    "exif.tar": (tarred(folders(suffix="jpg", make=lambda n: picture(n, "JPEG", exif=upright()))), CATS, {}, ()),
    "gif.tar": (tarred(folders(suffix="gif", make=lambda seed: picture(seed, "GIF"))), CATS, {}, ()),
    "names.tar": (tarred(folders((f"{LONG}erato", f"{LONG}sara"))), {f"{LONG}erato": 15, f"{LONG}sara": 15}, {}, ()),
    "macos.tar": (tarred(PACKS), CATS, {}, ()),
    "macos.zip": (zipped(PACKS), CATS, {}, ()),
    "split.tar": (tarred(SPLIT), {"cat": 30, "dog": 30}, {}, ("E435",)),
    "ok.tar.gz": (tarred(folders(), "w:gz"), CATS, {}, ()),
    "win.zip": (zipped({n.replace("/", "\\"): d for n, d in folders().items()}), CATS, {}, ()),
    "latin1_bytes.tar": (old("Café", "Cafè"), {"Café": 15, "Cafè": 15}, {}, ("E426",)),
    "nfd.tar": (tarred(folders(("Ku\u0308che", "Tu\u0308r"))), {"Küche": 15, "Tür": 15}, {}, ()),
    "hardlink.tar": (linked(tarfile.LNKTYPE), CATS, LINKS, ("E444",)),
    "symlink.tar": (linked(tarfile.SYMTYPE), CATS, LINKS, ("E444",)),
    "flat_labels.tar": (
        tarred({f"images/{n}.png": picture(n) for n in range(30)} | {"labels.csv": b"file,label\n0.png,cat\n"}),
        "E380", {}, (),
    ),
    "heic.tar": (tarred(folders(suffix="heic", make=lambda _: b"\0\0\0\x18ftypheic" + bytes(500))), "E380", {}, ()),
    "kanji.tar": (tarred(folders(("猫", "犬")), format=tarfile.GNU_FORMAT, encoding="shift_jis"), "E425", {}, ()),
    "one.tar": (tarred(folders(("cat",))), "E380", {}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGE_FILES)
def test_images_are_learned_as_they_were_meant(tmp_path: Path, name: str) -> None:
    content, classes, left_out, told = IMAGE_FILES[name]
    verdict = inspect([put(tmp_path, name, content)])
    if isinstance(classes, str):
        assert codes_of(verdict) == [classes]
        return
    assert (verdict.classes, verdict.left_out, tuple(codes_of(verdict))) == (classes, left_out, told)
    require_words(verdict)
    assert verdict.rows == sum(classes.values())
    assert (verdict.repeats, verdict.heldout_overlap) == (0, 0)
    assert verdict.tokens == (30 if verdict.heldout else 27)
    for measured in verdict.pieces:
        assert isinstance(measured, Pixels)
        assert 110 < measured.mean < 145, "neither white nor black"
        assert 65 < measured.deviation < 90


def test_a_refusal_names_what_is_there(tmp_path: Path) -> None:
    said = {}
    for name in ("flat_labels.tar", "heic.tar", "one.tar"):
        said[name] = inspect([put(tmp_path, name, IMAGE_FILES[name][0])]).findings[0].text
    assert "30 images in 1 folder (other files: 1 CSV files)" in said["flat_labels.tar"]
    assert "0 images in 0 folders (other files: 30 HEIC files)" in said["heic.tar"]
    assert "15 images in 1 folder " in said["one.tar"]


def test_pictures_with_16_bits_look_like_those_with_8(tmp_path: Path) -> None:
    seen = [inspect([put(tmp_path, name, IMAGE_FILES[name][0])]).pieces for name in ("shapes8.tar", "gray16_png.tar")]
    for eight, sixteen in zip(*seen, strict=True):
        assert isinstance(eight, Pixels)
        assert isinstance(sixteen, Pixels)
        assert sixteen.mean == pytest.approx(eight.mean, abs=1)
        assert sixteen.deviation == pytest.approx(eight.deviation, abs=1)
