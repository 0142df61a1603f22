"""Half precision by arithmetic, by a table and by torch: always numpy's casts, bit for bit."""

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from peer_agent.averaging.halves import BLOCK, Bits, Floats, from_halves, to_halves

ALL = np.arange(2**16, dtype=np.uint16)
LARGEST = np.float32(65504)


@pytest.fixture(params=["numpy", "torch"], autouse=True)
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch in the process, and as if it were not."""
    if request.param == "torch":
        import torch  # noqa: F401
    else:
        monkeypatch.setitem(sys.modules, "torch", None)


def rounded(values: Floats) -> tuple[Bits, NDArray[np.uint32]]:
    halves, magnitudes = np.empty(values.size, np.uint16), values.copy()
    to_halves(magnitudes, halves)
    return halves, np.abs(magnitudes).view(np.uint32)


def check(values: Floats) -> None:
    with np.errstate(all="ignore"):
        wanted = values.astype(np.float16)
    halves, magnitudes = rounded(values)
    assert np.array_equal(halves, wanted.view(np.uint16))
    assert np.array_equal(magnitudes, np.abs(wanted.astype(np.float32)).view(np.uint32))


def test_every_half_is_read_as_what_it_stands_for() -> None:
    values = np.empty(ALL.size, np.float32)
    from_halves(ALL, values)
    assert np.array_equal(values, ALL.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(values), ALL >= 2**15)


def test_halves_are_read_from_any_address_and_byte_order() -> None:
    unaligned, values = np.frombuffer(b"?" + ALL.tobytes(), "<u2", offset=1), np.empty(ALL.size, np.float32)
    for source in (unaligned, ALL.astype(">u2")):
        from_halves(source, values)
        assert np.array_equal(values, ALL.view(np.float16).astype(np.float32), equal_nan=True)


def test_every_finite_half_is_written_as_itself() -> None:
    halves = ALL[(ALL & 0x7C00) != 0x7C00]
    written, _ = rounded(halves.view(np.float16).astype(np.float32))
    assert np.array_equal(written, halves)


@pytest.mark.parametrize("sign", [0, 1])
def test_numbers_of_every_exponent_are_rounded_to_even(sign: int) -> None:
    """Ties, what is next to them, and last places in which a second rounding would show."""
    places = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FEFFF, 0x7FF000, 0x7FFFFF], np.uint32)
    exponents = np.arange(2**8, dtype=np.uint32) << 23
    random = np.random.default_rng(3).integers(0, 2**23, 400, np.uint32)
    bits = exponents[:, np.newaxis] | np.concatenate([places, random, random << 13 & 0x7FFFFF | 0x1000])
    values = (bits.reshape(-1) | np.uint32(sign << 31)).view(np.float32)
    check(values[np.abs(values) <= LARGEST])


def test_the_ties_of_subnormal_halves_are_rounded_to_even() -> None:
    ties = (np.arange(2048, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0**-24)
    check(np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1)), -ties]))


def test_more_than_a_block_at_once() -> None:
    check(np.random.default_rng(4).standard_normal(2 * BLOCK + 3).astype(np.float32))
