"""Archives of images: what is read of them, and what is refused."""

import tarfile
from pathlib import Path

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.images import archive
from peer_agent.publishing.images.archive import members_of
from tests.publishing.images.tars import entry_of, tar


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_files_in_folders_are_read_in_their_order(tmp_path: Path, mode: str) -> None:
    files = {"set/cat/1.png": b"one", "set/dog/2.png": b"two", "./bird/3.png": b"three", "alone.png": b"none"}
    folder = entry_of("set/empty", tarfile.DIRTYPE)
    members = [*members_of(tar(tmp_path / "a.tar", files, [folder], mode))]
    found = [(member.folder, member.name, member.content) for member in members]
    assert found == [("cat", "1.png", b"one"), ("dog", "2.png", b"two"), ("bird", "3.png", b"three")]


def test_what_a_file_system_adds_is_left_out(tmp_path: Path) -> None:
    files = {"cat/._1.png": b"fork", "__MACOSX/1.png": b"fork", ".git/x": b"x", "cat/1.png": b"one"}
    assert [member.name for member in members_of(tar(tmp_path / "a.tar", files))] == ["1.png"]


@pytest.mark.parametrize(
    "entry",
    [
        entry_of("cat/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry_of("cat/hard", tarfile.LNKTYPE, "../../x"),
        entry_of("cat/device", tarfile.CHRTYPE),
        entry_of("cat/pipe", tarfile.FIFOTYPE),
        entry_of("../cat/out.png", tarfile.REGTYPE),
        entry_of("/cat/root.png", tarfile.REGTYPE),
    ],
    ids=lambda entry: entry.name,
)
def test_what_leads_out_is_refused_by_name(tmp_path: Path, entry: tarfile.TarInfo) -> None:
    with pytest.raises(Problem, match=f"E379.*{entry.name}"):
        [*members_of(tar(tmp_path / "a.tar", {"cat/1.png": b"one"}, [entry]))]


def test_what_is_no_archive_or_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"a text, and no archive" * 100)
    with pytest.raises(Problem, match="E378"):
        [*members_of(path)]
    tar(path, {"cat/1.png": b"x" * 5000, "cat/2.png": b"y" * 5000}, mode="w:gz")
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(Problem, match="E378"):
        [*members_of(path)]


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar", {"cat/1.png": b"one", "cat/2.png": b"two!", "cat/3.png": b"six"})
    monkeypatch.setattr(archive, "FILE_BYTES", 3)
    assert [member.content for member in members_of(path)] == [b"one", b"", b"six"]
    monkeypatch.setattr(archive, "FILES", 2)
    with pytest.raises(Problem, match=r"E378.*more than 2 files"):
        [*members_of(path)]


def test_a_name_of_a_gigabyte_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar", {f"cat/{'x' * 3000}.png": b"one"})
    assert [len(member.name) for member in members_of(path)] == [3004]
    monkeypatch.setattr(archive, "LONGEST_NAME", 2000)
    with pytest.raises(Problem, match=r"E378.*too long"):
        [*members_of(path)]
