"""What comes of a unit, and of several: known without what computes it."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit


class Computed(Struct, frozen=True):
    """A unit whose gradient has been computed. `loss_sum` is in nats over `loss_tokens`."""

    unit: Unit
    base_step: int
    loss_sum: float
    loss_tokens: int


class NonFinite(Struct, frozen=True):
    """A unit whose gradient was not finite and was thrown away."""

    unit: Unit


class Taken(Struct, frozen=True):
    """Everything since the last hand-over: the flat gradient of the summed loss, and what it is made of."""

    gradient_sum: NDArray[np.float32]
    loss_tokens: int
    loss_sum: float
    units: tuple[DoneUnit, ...]
