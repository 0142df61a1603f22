"""Texts on their way in."""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.errors import Problem
from runs.datasets.uploads import length_fault, utf8_checked, write_file


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in pairwise(bounds)]


@given(st.text(), st.lists(st.integers(0, 10_000)))
def test_a_text_comes_through_however_it_is_cut(text: str, places: list[int]) -> None:
    assert b"".join(utf8_checked(cut(text.encode(), places))) == text.encode()


@given(
    st.text(), st.sampled_from([b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f"]), st.lists(st.integers(0, 10_000))
)
def test_the_first_wrong_byte_is_named_however_the_text_is_cut(text: str, wrong: bytes, places: list[int]) -> None:
    with pytest.raises(Problem) as raised:
        list(utf8_checked(cut(text.encode() + wrong, places)))
    assert raised.value.fault.code == "E302"
    assert f"byte {len(text.encode())}: 0x{wrong[0]:02x}" in raised.value.fault.text


def test_a_text_in_latin_1_is_refused_with_what_to_do() -> None:
    with pytest.raises(Problem, match=r"E302.*byte 3: 0xe9.*Save it as UTF-8"):
        list(utf8_checked(["Café".encode("latin-1")]))


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
        write_file(endless(), tmp_path / "text", size=1500, is_text=True)
    assert (tmp_path / "text").stat().st_size <= 1500


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    written = write_file([b"many ", b"hands"], tmp_path / "text", size=10, is_text=True)
    assert written == hashlib.sha256(b"many hands").hexdigest()
    with pytest.raises(Problem, match="E302"):
        write_file([b"\xff"], tmp_path / "text", size=1, is_text=True)
    write_file([b"\xff"], tmp_path / "archive", size=1, is_text=False)
    assert (tmp_path / "archive").read_bytes() == b"\xff"
