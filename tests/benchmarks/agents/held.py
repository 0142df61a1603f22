"""Samples of each contributor's gradient sum at a cut, for comparison with the round's average.

All peers sample the same elements of the vector. Its length seeds the random choice.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Contribution, Record
from peer_agent.protocol.messages import Weight

PLACES = 16_384  # a sample large enough to estimate the error to about one percent


class Held(Struct, frozen=True, eq=False):
    """A contributor's sums of token-weighted gradients at the sampled places, and the token count at each place."""

    sums: Floats
    tokens: NDArray[np.int64]


def places_in(elements: int) -> NDArray[np.int64]:
    """Return the sampled places in ascending order. They depend only on `elements`, so all peers sample the same
    places.
    """
    count = min(PLACES, elements)
    return np.sort(np.random.default_rng(elements).choice(elements, count, replace=False, shuffle=False))


def tokens_at(weights: Iterable[Weight], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.zeros(len(chunks), np.int64)
    for weight in weights:
        found[(weight.first <= chunks) & (chunks < weight.stop)] = weight.tokens
    return found


def save_held(folder: Path, step: int, held: Held) -> None:
    """Save the sums taken at this step's cut. A later cut at the same step overwrites an earlier one."""
    np.savez(_held(folder, step), sums=held.sums, tokens=held.tokens)


def load_held(folder: Path, step: int) -> Held:
    """Load the sums taken at this step's cut. Raise OSError if none are saved."""
    with np.load(_held(folder, step)) as found:
        return Held(found["sums"], found["tokens"])


def save_average(folder: Path, step: int, values: Floats) -> None:
    """Save the average of the round cut at this step. The write is atomic, since other processes read the file."""
    path = _average(folder, step)
    with path.with_suffix(".part").open("wb") as file:
        np.save(file, values)
    path.with_suffix(".part").replace(path)


def load_average(folder: Path, step: int) -> Floats | None:
    """Return the saved average, or None if the round made no update."""
    path = _average(folder, step)
    values: Floats | None = np.load(path) if path.exists() else None
    return values


def error_rms(record: Record, held: Mapping[PeerId, Held], average: Floats) -> float:
    exact = exact_mean(record, held)
    return float(np.sqrt(np.square(average - exact).mean() / np.square(exact).mean()))


def exact_mean(record: Record, held: Mapping[PeerId, Held]) -> NDArray[np.float64]:
    """Return the exact mean at each sampled place, over the contributors that the record includes at that place."""
    chunks = places_in(record.elements) // record.chunk_elements
    sums, tokens = np.zeros(len(chunks)), np.zeros(len(chunks))
    for part in record.contributions:
        is_in, own = _is_in(part, chunks), held[part.peer]
        sums += np.where(is_in, own.sums, 0.0)
        tokens += np.where(is_in, own.tokens, 0)
    return np.asarray(sums / tokens)


def _is_in(part: Contribution, chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
    found = np.zeros(len(chunks), np.bool_)
    for first, stop in ((chunk.first, chunk.stop) for chunk in part.included):
        found |= (first <= chunks) & (chunks < stop)
    return found


def _held(folder: Path, step: int) -> Path:
    return folder / f"held-{step}.npz"


def _average(folder: Path, step: int) -> Path:
    return folder / f"average-{step}.npy"
