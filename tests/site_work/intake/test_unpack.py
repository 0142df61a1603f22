"""Compressed files and archives: what is read of them, what is left out, and their limits."""

import bz2
import gzip
import lzma
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.site_work.intake import unpack as module
from peer_agent.site_work.intake.unpack import members_of, split_of
from peer_agent.site_work.intake.verdict import Verdict
from tests.site_work.intake.made import codes_of, put, tarred, zipped
from tests.site_work.tars import entry_of, tar

FILES = {"set/cat/1.png": b"one", "set/dog/2.png": b"two", "./bird/3.png": b"three", "alone.png": b"none"}


def found(path: Path, verdict: Verdict | None = None, name: str = "") -> dict[str, bytes]:
    members = members_of(path, name or path.name, verdict or Verdict(), path.parent / "unpacking")
    return {member.name: member.file.read() for member in members}


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tar", tarred(FILES)), ("a.tgz", tarred(FILES, "w:gz")), ("a.tar.xz", lzma.compress(tarred(FILES))),
     ("a.tar.zst", zstd(tarred(FILES))), ("a.zip", zipped(FILES)), ("a.zip.bz2", bz2.compress(zipped(FILES)))],
)  # fmt: skip
def test_files_of_an_archive_are_read_in_order(tmp_path: Path, name: str, content: bytes) -> None:
    assert [*found(put(tmp_path, name, content)).items()] == [*FILES.items()]
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing unpacked is left"


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_a_packed_file_loses_its_suffix(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    assert found(put(tmp_path, "a.txt.x", pack(b"words"))) == {"a.txt": b"words"}
    twice = pack(b"words ") + pack(b"and more")
    assert found(put(tmp_path, "b.txt.x", twice)) == {"b.txt": b"words and more"}, "parts one after another"


def test_archives_in_an_archive_are_opened(tmp_path: Path) -> None:
    inside = {"a/1.txt.gz": gzip.compress(b"one", mtime=0), "b.tar": tarred({"2.txt": b"two"}), "3.txt": b"three"}
    assert sorted(found(put(tmp_path, "a.zip", zipped(inside))).values()) == [b"one", b"three", b"two"]


def test_a_nested_archive_keeps_its_part_of_the_data(tmp_path: Path) -> None:
    """An archive may contain train.zip and test.zip."""
    inside = {"train.zip": zipped({"1.txt": b"one"}), "test.zip": zipped({"1.txt": b"two"})}
    assert [*map(split_of, found(put(tmp_path, "a.zip", zipped(inside))))] == ["train", "test"]


def test_files_of_file_systems_are_left_out(tmp_path: Path) -> None:
    hidden = {"cat/._1.png": b"x", "__MACOSX/1.png": b"x", ".git/x": b"x", "set/.DS_Store": b"x", "cat/Thumbs.db": b"x"}
    for content in (tarred({**hidden, "cat/1.png": b"one"}), zipped({**hidden, "cat/1.png": b"one"})):
        assert found(put(tmp_path, "a", content)) == {"cat/1.png": b"one"}


@pytest.mark.parametrize(
    "entry",
    [
        entry_of("cat/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry_of("cat/hard", tarfile.LNKTYPE, "../../x"),
        entry_of("cat/device", tarfile.CHRTYPE),
        entry_of("cat/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda entry: entry.name,
)
def test_links_and_devices_are_left_out(tmp_path: Path, entry: tarfile.TarInfo) -> None:
    verdict = Verdict()
    assert found(tar(tmp_path / "a.tar", {"cat/1.png": b"one"}, [entry]), verdict) == {"cat/1.png": b"one"}
    assert verdict.left_out == {"links and devices": 1}
    assert verdict.examples == {"links and devices": [entry.name]}


def test_names_never_become_paths(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    names = {"../../evil": b"one", f"{tmp_path}/evil": b"two", "../evil.gz": gzip.compress(b"three", mtime=0)}
    for content in (tarred(names), zipped(names)):
        assert sorted(found(put(folder, "a", content)).values()) == [b"one", b"three", b"two"]
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "a"]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar", b"a text, and no archive" * 100),
        ("a.gz", cut(gzip.compress(bytes(range(256)) * 9, mtime=0))),
        ("a.bz2", cut(bz2.compress(bytes(range(256)) * 9))),
        ("a.xz", cut(lzma.compress(bytes(range(256)) * 9))),
        ("a.zst", cut(zstd(bytes(range(256)) * 9))),
        ("a.zip", cut(zipped(FILES))),
        ("a.tar", tarred({"cat/1.png": b"x" * 5000})[:3000]),
        ("a.gz", b"\x1f\x8b" + b"x" * 50),
    ],
    ids=["no tar", "gz", "bz2", "xz", "zst", "zip", "tar", "no gzip"],
)
def test_what_is_cut_short_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(Problem, match=r"E378: \S+ cannot be unpacked"):
        found(put(tmp_path, name, content))
    assert [path.name for path in tmp_path.iterdir()] == [name]


ENDED = tarred({"1.txt": b"one", "2.txt": b"two"})
BORDER = 2 * 1024  # where the mark at the end begins, after two headers and two blocks of content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar", ENDED[:BORDER]),
        ("a.tgz", gzip.compress(ENDED[:BORDER], mtime=0)),
        ("a.zip", zipped({"inside.tar": ENDED[:BORDER]})),
        ("a.tar", ENDED + tarred({"3.txt": b"six"})[:1024]),
        ("a.zip", zipped({"0.txt": b"lost"}) + zipped({"1.txt": b"one", "2.txt": b"two"})),
    ],
    ids=["tar", "packed", "inside", "second", "two zips"],
)
def test_an_archive_without_its_end_is_asked_about(tmp_path: Path, name: str, content: bytes) -> None:
    verdict = Verdict()
    assert {b"one", b"two"} <= {*found(put(tmp_path, name, content), verdict).values()}
    assert codes_of(verdict) == ["E463"]


def test_archives_that_were_joined_are_read_to_the_end(tmp_path: Path) -> None:
    """tar itself stops at the first mark of an end, unless it is told to go on."""
    verdict = Verdict()
    joined = put(tmp_path, "a.tar", ENDED + tarred({"3.txt": b"six"}))
    assert [*found(joined, verdict).values()] == [b"one", b"two", b"six"]
    assert codes_of(verdict) == []


@pytest.mark.parametrize("cut", [BORDER - 100, 1024 + 300, 1024 + 512])
def test_a_damaged_header_in_a_tar_is_refused(tmp_path: Path, cut: int) -> None:
    """tarfile ends there, as if there were nothing more."""
    damaged = bytearray(ENDED)
    damaged[1024 + 10] ^= 1
    for content in (bytes(damaged), ENDED[:cut]):
        with pytest.raises(Problem, match=r"E378.*a\.tar"):
            found(put(tmp_path, "a.tar", content))


def test_a_folder_is_read_as_an_archive_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    others = {".git/x": b"x", "b.gz": gzip.compress(b"packed", mtime=0), "c.pdf": b"%PDF-1.7"}
    for name, content in {**FILES, **others}.items():
        put((folder / name).parent, Path(name).name, content)
    verdict = Verdict()
    read = found(folder, verdict)
    assert read == {**{Path(name).as_posix(): content for name, content in FILES.items()}, "b": b"packed"}
    assert verdict.left_out == {"not opened": 1}


def test_an_unknown_way_of_packing_a_zip_is_refused(tmp_path: Path) -> None:
    """Windows packs large files with Deflate64, method 9."""
    content = bytearray(zipped({"a.txt": b"words"}))
    content[content.find(b"PK\x03\x04") + 8] = content[content.find(b"PK\x01\x02") + 10] = 9
    with pytest.raises(Problem, match="E378"):
        found(put(tmp_path, "a.zip", bytes(content)))


def test_a_zip_with_a_password_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped({"a.txt": b"words"}))
    content[content.find(b"PK\x03\x04") + 6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(Problem, match=r"E424.*password"):
        found(put(tmp_path, "a.zip", bytes(content)))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"7z\xbc\xaf\x27\x1c", "7z"),
        (b"Rar!\x1a\x07\x00", "RAR"),
        (b"%PDF-1.7", "PDF"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\x93NUMPY", "NumPy"),
        (zipped({"word/document.xml": b"x"}), "Word"),
        (zipped({"xl/workbook.xml": b"x"}), "Excel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_format_not_opened_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    with pytest.raises(Problem, match=f"E424.*{what}"):
        found(put(tmp_path, "a", content))


def test_numbers_of_files_and_lengths_of_names_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar", {f"cat/{'x' * 3000}.png": b"one", "cat/2.png": b"two", "cat/3.png": b"six"})
    assert max(map(len, found(path))) == 3008
    monkeypatch.setattr(module, "FILES", 2)
    with pytest.raises(Problem, match=r"E378.*more than 2 files"):
        found(path)
    monkeypatch.setattr(module, "LONGEST_NAME", 2000)
    with pytest.raises(Problem, match=r"E378.*too long"):
        found(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.gz", gzip.compress(bytes(3 << 20), mtime=0)),
        ("a.zip", zipped({"a": bytes(3 << 20)})),
        ("a.tgz", tarred({"a": bytes(1 << 20), "b": bytes(2 << 20)}, "w:gz")),
        ("a.zip", zipped({"a.gz": gzip.compress(bytes(3 << 20), mtime=0)})),
    ],
)
def test_what_unpacks_to_too_much_is_refused(
    tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNPACKED_LEAST", 1 << 20)
    with pytest.raises(Problem, match=r"E395.*more than 1 MB"):
        found(put(tmp_path, name, content))


def test_layers_of_packing_are_limited(tmp_path: Path) -> None:
    content = b"words"
    for _ in range(6):
        content = gzip.compress(content, mtime=0)
    assert found(put(tmp_path, "a", content)) != {"a": b"words"}


def test_names_are_nfc_and_old_encodings_are_asked_about(tmp_path: Path) -> None:
    decomposed = {"Cafe\u0301/1": b"one", "Tu\u0308r/2": b"two"}
    for content in (tarred(decomposed), zipped(decomposed)):
        assert [*found(put(tmp_path, "a", content))] == ["Caf\u00e9/1", "T\u00fcr/2"]
    verdict = Verdict()
    old = tarred({"Caf\u00e9/1": b"one", "Caf\u00e8/1": b"two"}, format=tarfile.GNU_FORMAT, encoding="latin-1")
    assert [*found(put(tmp_path, "old.tar", old), verdict)] == ["Caf\u00e9/1", "Caf\u00e8/1"]
    assert codes_of(verdict) == ["E426"]
    other = tarred({"Кошка/1": b"one"}, format=tarfile.GNU_FORMAT, encoding="cp866")
    with pytest.raises(Problem, match="E425"):
        found(put(tmp_path, "other.tar", other))


def test_a_zip_from_windows_may_use_backslashes(tmp_path: Path) -> None:
    files = {"set\\cat\\1.png": b"one", "set\\__MACOSX\\2.png": b"fork", "set\\cat\\._1.png": b"fork"}
    assert found(put(tmp_path, "a.zip", zipped(files))) == {"set/cat/1.png": b"one"}


def test_a_zip_without_the_flag_for_utf8_is_read_as_such(tmp_path: Path) -> None:
    content = zipped({"Küche/1.png": b"one"})
    flagged = zipfile.ZipFile(put(tmp_path, "a.zip", content)).infolist()[0].flag_bits
    assert flagged & 0x800
    at, central = content.find(b"PK\x03\x04") + 7, content.find(b"PK\x01\x02") + 9
    plain = bytearray(content)
    plain[at] &= ~0x8
    plain[central] &= ~0x8
    assert [*found(put(tmp_path, "b.zip", bytes(plain)))] == ["Küche/1.png"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train/cat/1.png", "train"), ("Val/1.txt", "validation"), ("dev.jsonl", "validation"),
        ("train-00000-of-00001.parquet", "train"), ("test_set.csv", "test"), ("latest.txt", ""), ("contest/1.txt", ""),
        ("training.txt", "train"), ("", ""),
    ],
)  # fmt: skip
def test_parts_set_aside_are_recognised_by_name(name: str, split: str) -> None:
    assert split_of(name) == split
