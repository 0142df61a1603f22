"""Uploads in pieces: each piece must continue exactly where the last one stopped."""

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import storage
from runs.datasets import uploads
from runs.datasets.services import store_pieces
from runs.datasets.uploads import length_fault, write_file
from runs.models import Dataset, Upload

TEXT = "Many hands, много рук, 众人拾柴火焰高.\n".encode() * 40


def begun(person: Person, text: bytes = TEXT, filename: str = "words.txt") -> Upload:
    return uploads.begin_upload(person=person, filename=filename, size=len(text))


def sent(upload: Upload, text: bytes, *cuts: int) -> Upload:
    for start, stop in pairwise((upload.offset, *cuts, len(text))):
        upload = uploads.take_piece(upload=upload, offset=start, piece=text[start:stop])
    return upload


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, len(TEXT) - 1), max_size=6))
def test_a_text_is_whole_however_it_was_cut(organizer: Person, cuts: set[int]) -> None:
    upload = sent(begun(organizer), TEXT, *sorted(cuts))
    assert storage.upload_path(upload).read_bytes() == TEXT
    dataset = store_pieces(organizer=organizer, title="Words", licence="CC0", upload=upload)
    assert dataset.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert storage.text_path(dataset).read_bytes() == TEXT


@pytest.mark.parametrize("filename", ["Digits.TAR", "words.txt"])
def test_bytes_of_any_kind_are_kept_as_they_are(organizer: Person, filename: str) -> None:
    brought = bytes(range(256)) * 8
    upload = sent(begun(organizer, brought, filename), brought, 200, 1000)
    dataset = store_pieces(organizer=organizer, title="Digits", licence="CC0", upload=upload)
    assert storage.text_path(dataset).read_bytes() == brought


def test_what_is_kept_says_who_vouched_for_it(organizer: Person, django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        store_pieces(organizer=organizer, title="Words", licence="CC0", upload=sent(begun(organizer), TEXT))
    dataset = Dataset.objects.get()
    assert dataset.vouched_by == organizer
    assert dataset.vouched_at is not None
    assert not Upload.objects.exists()
    assert list((storage.root() / "uploads").iterdir()) == []


def test_a_piece_that_comes_twice_counts_once(organizer: Person) -> None:
    upload = uploads.take_piece(upload=begun(organizer), offset=0, piece=TEXT[:100])
    with pytest.raises(Problem, match="E319: The site has 100 bytes of this upload, not 0"):
        uploads.take_piece(upload=upload, offset=0, piece=TEXT[:100])
    sent(upload, TEXT)
    assert storage.upload_path(upload).read_bytes() == TEXT


def test_what_was_written_and_never_acknowledged_is_written_over(organizer: Person) -> None:
    upload = uploads.take_piece(upload=begun(organizer), offset=0, piece=TEXT[:100])
    with storage.upload_path(upload).open("ab") as file:
        file.write(b"the site was killed here" * 100)
    sent(upload, TEXT)
    assert storage.upload_path(upload).read_bytes() == TEXT


def test_more_than_was_announced_is_refused(organizer: Person) -> None:
    with pytest.raises(Problem, match="E319"):
        uploads.take_piece(upload=begun(organizer), offset=0, piece=TEXT + b"x")


@pytest.mark.parametrize(("size", "code"), [(0, "E303"), (-1, "E303"), (10**12, "E304")])
def test_a_size_is_refused_before_a_byte_is_sent(organizer: Person, size: int, code: str) -> None:
    with pytest.raises(Problem, match=code):
        uploads.begin_upload(person=organizer, filename="words.txt", size=size)
    assert not Upload.objects.exists()


def test_half_a_text_is_no_dataset(organizer: Person) -> None:
    upload = uploads.take_piece(upload=begun(organizer), offset=0, piece=TEXT[:100])
    with pytest.raises(Problem, match="E318"):
        store_pieces(organizer=organizer, title="Words", licence="CC0", upload=upload)
    assert not Dataset.objects.exists()


def test_an_upload_is_its_persons_for_a_day(organizer: Person, stranger: Person) -> None:
    upload = begun(organizer)
    assert uploads.upload_of(organizer, upload.pk) == upload
    with pytest.raises(Problem, match="E318"):
        uploads.upload_of(stranger, upload.pk)
    Upload.objects.update(touched_at=timezone.now() - timedelta(days=1, seconds=1))
    with pytest.raises(Problem, match="E318"):
        uploads.upload_of(organizer, upload.pk)
    assert uploads.forget_stale() == 1
    assert not storage.upload_path(upload).exists()


def test_nobody_fills_the_disk_with_beginnings(organizer: Person, stranger: Person) -> None:
    theirs = begun(stranger)
    made = [begun(organizer) for _ in range(uploads.A_PERSON + 3)]
    assert set(Upload.objects.all()) == {theirs, *made[-uploads.A_PERSON :]}
    assert len(list((storage.root() / "uploads").iterdir())) == uploads.A_PERSON + 1


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a/b\\c.txt", "c.txt"),
        ("../../etc/passwd", "passwd"),
        ("x\u202etxt.exe", "xtxt.exe"),
        ("", "text.txt"),
        ("谚语.txt", "谚语.txt"),
    ],
)
def test_a_file_name_is_a_name_and_nothing_else(organizer: Person, said: str, kept: str) -> None:
    assert begun(organizer, filename=said).filename == kept


@pytest.mark.parametrize(
    ("length", "code"), [(None, "E311"), ("", "E311"), ("many", "E311"), ("-1", "E311"), ("101", "E304")]
)
def test_lengths_that_are_refused(length: str | None, code: str) -> None:
    fault = length_fault(length, limit=100)
    assert fault is not None
    assert fault.code == code


@pytest.mark.parametrize("length", ["0", "100"])
def test_lengths_that_pass(length: str) -> None:
    assert length_fault(length, limit=100) is None


def test_more_bytes_than_announced_are_not_written(tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 1000

    with pytest.raises(Problem, match="E304"):
        write_file(endless(), tmp_path / "text", size=1500)
    assert (tmp_path / "text").stat().st_size <= 1500


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    written = write_file([b"many ", b"hands \xff"], tmp_path / "text", size=12)
    assert written == hashlib.sha256(b"many hands \xff").hexdigest()
    assert (tmp_path / "text").read_bytes() == b"many hands \xff"
