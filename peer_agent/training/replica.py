"""A peer's copy of a run's state. Only an averaged update or a snapshot can change it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.digests import BLOCK as AT_A_TIME
from peer_agent.protocol.log.digests import POSITION, VECTORS
from peer_agent.protocol.log.records import GENESIS, RecordHead
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import NO_FILES, model_of
from peer_agent.training.model import layout_of, parameters_of
from peer_agent.training.optimizers import Moving, update
from peer_agent.training.precision import kept_in, narrow_fixed
from peer_agent.training.snapshots import BLOCK, State, canonical_blocks, hash_of, header_of, read_state

# The cheap digest of a replica's state, on any device. It equals `protocol.log.digests.state_digest` (rule 17).

SIGNED_POSITION = POSITION - 2**64  # the same 64 bits, signed, because torch has only signed integers


def state_digest(*vectors: torch.Tensor) -> str:
    """Return a digest of flat vectors as 16 hexadecimal digits: the wrapping sum of each bit pattern times an odd
    constant for its position.
    """
    total, offset = 0, 0
    for vector in vectors:
        for start in range(0, vector.numel(), AT_A_TIME):
            bits = vector[start : start + AT_A_TIME].view(torch.int32).to(torch.int64)
            first = offset + start
            place = torch.arange(first, first + bits.numel(), dtype=torch.int64, device=vector.device)
            total += int((bits * (place * SIGNED_POSITION).bitwise_or(1)).sum())
        offset += vector.numel()
    return f"{total % 2**64:016x}"


class OutOfOrder(ValueError):
    """Raised for a record that does not follow the replica's state, which remains unchanged."""


class Before(NamedTuple):
    """The parameters [P] of the step before a replica's own, in CPU memory."""

    step: int
    parameters: torch.Tensor


class Replica:
    """Parameters and two moments, as flat float32 vectors on one device. The model's parameters are views of
    `parameters`. `step` and `index` count committed updates and log entries. `log_digest`: the last record's digest.
    `before`: a copy of the last step's parameters, which `apply` makes while `keeps_before` is set.
    """

    def __init__(self, recipe: Recipe, device: torch.device | str = "cpu", files: Path = NO_FILES) -> None:
        """Build a recipe's state at step 0. `files`: the folder of files, named by digest, that the model needs."""
        self.recipe = recipe
        self.device = torch.device(device)
        self.model = model_of(recipe, files)
        if (half := kept_in(recipe, self.device)) is not None:
            narrow_fixed(self.model, half)  # before the model moves to the device
        self.model.to(self.device)
        self.layout = layout_of(self.model)
        self.parameters = torch.zeros(self.layout.elements, dtype=torch.float32, device=self.device)
        self.moment1 = torch.zeros_like(self.parameters)
        self.moment2 = torch.zeros_like(self.parameters)
        self.step, self.index, self.log_digest = 0, 0, GENESIS
        self.keeps_before = False
        self.before: Before | None = None
        self._move_model_into_vector()

    def use(self, parameters: torch.Tensor) -> None:
        """Let the model compute with these parameters, which must be shaped like `self.parameters`."""
        for piece, parameter in parameters_of(self.model, self.layout):
            parameter.data = piece.of(parameters)

    def _move_model_into_vector(self) -> None:
        for piece, parameter in parameters_of(self.model, self.layout):
            view = piece.of(self.parameters)
            view.copy_(parameter.detach())
            parameter.data = view

    def apply(self, record: RecordHead, digest: str, gradient: NDArray[np.float32]) -> None:
        """Apply an update's averaged gradient. Raises OutOfOrder if the record does not follow this state."""
        self._check_follows(record)
        if gradient.shape != (self.layout.elements,):
            raise ValueError(f"a gradient of {gradient.shape} for {self.layout.elements} parameters")
        averaged = torch.tensor(gradient, dtype=torch.float32, device=self.device)
        self.before = Before(self.step, self.parameters.to("cpu", copy=True)) if self.keeps_before else None
        state = Moving(self.parameters, self.moment1, self.moment2)
        update(
            self.recipe.optimizer, record.scalars, self.layout, state, averaged,
            frozen=self.recipe.frozen(self.step), unit_rows=self.recipe.unit_rows,
        )  # fmt: skip
        self.step, self.index, self.log_digest = record.step, record.index, digest

    def _check_follows(self, record: RecordHead) -> None:
        if record.kind != "update":
            raise OutOfOrder(f"entry {record.index} is a {record.kind}, not an update")
        if (record.step, record.index) != (self.step + 1, self.index + 1):
            raise OutOfOrder(
                f"step {record.step} (entry {record.index}) cannot follow step {self.step} (entry {self.index})"
            )
        if record.previous != self.log_digest:
            raise OutOfOrder(f"step {record.step} follows {record.previous[:12]}, not {self.log_digest[:12]}")

    def digest(self) -> str:
        return state_digest(self.parameters, self.moment1, self.moment2)

    def state_hash(self) -> tuple[str, int]:
        """Return the SHA-256 and size of the snapshot that `save` would write. The state must not change during this
        call.
        """
        return hash_of(self._canonical_blocks())

    def _canonical_blocks(self) -> Iterator[bytes | memoryview]:
        yield header_of(self.layout, step=self.step, index=self.index, log_digest=self.log_digest)
        for vector in (self.parameters, self.moment1, self.moment2):
            for start in range(0, vector.numel(), BLOCK):
                yield from canonical_blocks(vector[start : start + BLOCK].cpu().numpy())

    def copy_state(self) -> State:
        """Copy the state to CPU memory, so that a thread can save it while training goes on."""
        return State(
            layout=self.layout,
            step=self.step,
            index=self.index,
            log_digest=self.log_digest,
            parameters=_cpu_copy(self.parameters),
            moment1=_cpu_copy(self.moment1),
            moment2=_cpu_copy(self.moment2),
        )

    def save(self, path: Path) -> str:
        """Write a snapshot and return its SHA-256 in hexadecimal. Raises Problem E106 if the disk fails."""
        return self.copy_state().save(path)

    def load(self, path: Path) -> None:
        """Load a snapshot. If it is malformed or belongs to another model, raise Problem E310 and change nothing."""
        state = read_state(path)
        if state.layout != self.layout:
            raise Problem.of("E310", step=state.step)
        for name in VECTORS:
            getattr(self, name).copy_(torch.from_numpy(getattr(state, name)))
        self.before = None
        self.step, self.index, self.log_digest = state.step, state.index, state.log_digest


def _cpu_copy(vector: torch.Tensor) -> NDArray[np.float32]:
    return vector.to("cpu", copy=True).numpy()
