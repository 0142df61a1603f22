"""What comes of a unit, and of several: known without what computes it."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit


class Computed(Struct, frozen=True):
    """Units whose gradient has been computed in one pass. `loss_sum`: nats over the `loss_tokens` of all."""

    units: tuple[Unit, ...]
    base_step: int
    loss_sum: float
    loss_tokens: tuple[int, ...]  # of each


class NonFinite(Struct, frozen=True):
    """Units whose gradient was not finite and was thrown away."""

    units: tuple[Unit, ...]


class Taken(Struct, frozen=True):
    """Everything since the last hand-over: the flat gradient of the summed loss, and what it is made of."""

    gradient_sum: NDArray[np.float32]
    loss_tokens: int
    loss_sum: float
    units: tuple[DoneUnit, ...]
