"""A trainer's inner loop: it turns leased units into one gradient sum, and never changes the replica."""

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.errors import Problem, codes
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import Batch, Shard, heldout_batches, training_of
from peer_agent.training.layers import CompiledLayers, recompute_layers
from peer_agent.training.model import parameters_of
from peer_agent.training.precision import LossScale, half_of, widen_attention
from peer_agent.training.replica import Before, Replica
from peer_agent.training.units import MOST_UNITS, Batches, Computed, NonFinite, Shards, Taken, batch_of

log = logging.getLogger(__name__)


class Mean(Struct, frozen=True):
    """A mean loss in nats over `units` loss units."""

    loss: float
    units: int


def mean_loss(
    model: torch.nn.Module, recipe: Recipe, shard: Shard, device: torch.device, *, most: float = math.inf
) -> Mean:
    """Return the mean loss of the shard's first samples, stopping after the batch that reaches `most` loss units.
    Raises ValueError if there are no loss units.
    """
    kind = training_of(recipe)
    loss_sum, loss_units = 0.0, 0
    with torch.no_grad():
        for batch in heldout_batches(recipe, shard):
            loss_sum += float(kind.summed_loss(recipe, model, batch, device))
            loss_units += kind.loss_units_in(batch)
            if loss_units >= most:
                break
    if not loss_units:
        raise ValueError("the data are too little to be evaluated")
    return Mean(loss_sum / loss_units, loss_units)


def pick_device() -> torch.device:
    """Return a CUDA device or the CPU. Never use Apple's GPU, because its optimizer results would differ (rule 13)."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Trainer:
    """Sums one replica's gradients. Call one method at a time, and none while the replica applies an update."""

    def __init__(
        self,
        replica: Replica,
        run: RunId,
        shards: Shards,
        *,
        threads: int = 0,
        at_once: int = 0,
        recomputes: bool = False,
        compiles: bool = False,
    ) -> None:
        """Prepare to train `replica`. `threads`: for torch; 0 leaves the number unchanged. `at_once`: samples computed
        together; 0 means a whole pass. `recomputes`: True to recompute layers in the backward pass. If memory runs out,
        the trainer lowers `at_once`, then recomputes.
        """
        self.threads, self._threads_now = threads, 0
        self._use_threads()
        self.replica, self.run, self.at_once = replica, run, at_once
        self._kind = training_of(replica.recipe)
        self.batches = Batches(
            lambda of, unit: batch_of(of, unit, run=run, shard=shards[unit.shard]), self._kind.loss_units_in
        )
        self.coming: tuple[Unit, ...] = ()  # the probable next units, whose batch is made in advance
        self.compiled = CompiledLayers(replica.model) if compiles else None  # before recomputation wraps the layers
        self.recomputes = recomputes and recompute_layers(replica.model)
        self.half = half_of(replica.recipe, replica.device)
        if self.half is not None and replica.device.type == "cpu":
            widen_attention(replica.model)
        self._scale = LossScale(self.half)
        with memory_or_problem():
            self._sum = torch.zeros_like(replica.parameters)
            self._own = self._fresh = torch.zeros_like(replica.parameters)  # other units' gradients are elsewhere
        self.elsewhere: Elsewhere | None = None  # set while gradients of an earlier step are computed
        self._tie()
        self._forget()

    @property
    def step(self) -> int:
        """The step of the parameters with which gradients are computed."""
        return self.elsewhere.step if self.elsewhere is not None else self.replica.step

    def aim(self, elsewhere: "Elsewhere | None") -> None:
        """Compute with a copy of the parameters, and into its gradient buffer. None: with the replica, as usual."""
        self.elsewhere = elsewhere
        self.replica.use(self.replica.parameters if elsewhere is None else elsewhere.parameters)
        self._fresh = self._own if elsewhere is None else elsewhere.fresh
        self._tie()

    @property
    def most_units(self) -> int:
        """The most units that one pass may have. It is 1 on a CPU, because the operating system kills processes that
        run out of memory (decision 28). It is also 1 if the samples of a unit affect each other's loss.
        """
        is_alone = self.replica.device.type != "cuda" or self.replica.recipe.unit_is_whole
        return 1 if is_alone else MOST_UNITS

    def _use_threads(self) -> None:
        """Set torch's number of threads. Call this in the thread that computes, because torch ignores a change made in
        another thread.
        """
        if self.threads and self.threads != self._threads_now:
            torch.set_num_threads(self.threads)
            self._threads_now = self.threads

    def _tie(self) -> None:
        """Make each parameter's gradient a view of the flat buffer, so that the backward pass adds to the buffer."""
        for piece, parameter in parameters_of(self.replica.model, self.replica.layout):
            parameter.grad = piece.of(self._fresh)

    def _forget(self) -> None:
        self._units: list[DoneUnit] = []
        self._loss_tokens, self._loss_sum = 0, 0.0

    def begin(self, *units: Unit) -> "UnitInHand":
        """Make a batch of these units and zero the gradient. Raises Problem E107 if there is too little memory, or E111
        if a shard is damaged.
        """
        self._use_threads()
        with memory_or_problem():
            self._tie()  # an earlier loop may have replaced the gradients
            self._fresh.zero_()
            return UnitInHand(self, units)

    def try_out(self, *units: Unit) -> "UnitInHand":
        """Like `begin`, but for another machine's units: if they cannot be computed, they count as not finite."""
        return TriedUnit(self, units)

    def compute(self, *units: Unit) -> Computed | NonFinite:
        """Compute these units' gradient in one pass. Call `keep` to add it to the sum. Raises Problem E107 if there is
        too little memory, or E111 if a shard is damaged.
        """
        in_hand = self.begin(*units)
        in_hand.backward()
        return in_hand.finish()

    def gradient(self, recipe: Recipe, batch: Batch) -> float | None:
        """Compute a batch's gradient in the buffer. Return the loss, or NaN if the loss or gradient is not finite.
        Return None if the caller must retry, because this call has reduced memory use or stopped compiling. Raises
        Problem E107 if memory runs out and its use cannot be reduced.
        """
        try:
            with memory_or_problem():
                loss_sum = self._filled(recipe, batch)
                while not self._is_finite(loss_sum):
                    if not (math.isfinite(loss_sum) and self._scale.halve()):
                        return math.nan
                    loss_sum = self._filled(recipe, batch)
                self._scale.accept()
                return loss_sum
        except Problem as problem:
            if problem.fault.code != codes.NO_MEMORY or not self._takes_less(recipe, len(batch[0])):
                raise
        # A compiler may raise anything. An error with another cause will recur without the compiler.
        except Exception as error:
            if self.compiled is None or not self.compiled.give_up(error):
                raise
        if self.replica.device.type == "cuda":
            torch.cuda.empty_cache()  # frees memory fragments left by the failed attempt
        return None

    def _filled(self, recipe: Recipe, batch: Batch) -> float:
        """Compute a batch's gradient in the buffer, with zeros for frozen parameters. Return the loss in nats."""
        self._fresh.zero_()
        scale = self._scale.value
        loss_sum = sum(self._add_gradient(recipe, part, scale) for part in _parts(batch, self.at_once or len(batch[0])))
        if scale != 1:
            self._fresh.div_(scale)
        self._leave_out(recipe.frozen(self.step))
        return loss_sum

    def is_sound(self, recipe: Recipe, loss_sum: float) -> bool:
        """Return True if the loss and gradients left by another program's loop are finite, ignoring frozen parameters.
        Raises ValueError if the loop left no gradient.
        """
        for piece, parameter in parameters_of(self.replica.model, self.replica.layout):
            buffer, gradient = piece.of(self._fresh), parameter.grad
            if gradient is not None and gradient.data_ptr() != buffer.data_ptr():
                buffer.copy_(gradient.detach())  # the loop's `zero_grad()` has replaced the view with a new tensor
        if not self._fresh.any():
            raise ValueError("a unit has a gradient: call backward() of its loss before step()")
        self._leave_out(recipe.frozen(self.replica.step))
        return self._is_finite(loss_sum)

    def _is_finite(self, loss_sum: float) -> bool:
        return math.isfinite(loss_sum) and are_finite(self._fresh)

    def _takes_less(self, recipe: Recipe, samples: int) -> bool:
        """Halve the number of samples computed together, or else recompute layers. Return False if neither is
        possible.
        """
        at_once = min(self.at_once or samples, samples)
        if at_once > 1 and not recipe.unit_is_whole:
            self.at_once = at_once // 2
            return True
        if self.recomputes:
            return False
        self.recomputes = recompute_layers(self.replica.model)
        return self.recomputes

    def _leave_out(self, frozen: Collection[str]) -> None:
        for piece in self.replica.layout.pieces:
            if piece.name in frozen:
                piece.of(self._fresh).zero_()

    def _add_gradient(self, recipe: Recipe, batch: Batch, scale: float) -> float:
        loss = self.loss(recipe, batch)
        (loss * scale if scale != 1 else loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def loss(self, recipe: Recipe, batch: Batch) -> torch.Tensor:
        """Return the summed loss in nats. The forward pass uses the recipe's precision on this device."""
        with self._precision():
            return self._kind.summed_loss(recipe, self.replica.model, batch, self.replica.device)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.replica.device.type, dtype=self.half, enabled=self.half is not None)

    def keep(self, done: Computed) -> None:
        """Add the last computed gradient to the sum."""
        self._sum.add_(self._own)
        self._units += [DoneUnit(unit, done.base_step) for unit in done.units]
        self._loss_tokens += sum(done.loss_tokens)
        self._loss_sum += done.loss_sum

    @property
    def units(self) -> tuple[DoneUnit, ...]:
        return tuple(self._units)

    def take_sum(self) -> Taken:
        """Return the gradient sum in CPU memory, and begin a new one."""
        gradient = self._sum.to("cpu", copy=True).numpy()
        taken = Taken(gradient, self._loss_tokens, self._loss_sum, tuple(self._units))
        self.discard()
        return taken

    def discard(self) -> None:
        """Drop the gradient sum, and begin a new one."""
        self._sum.zero_()
        self._forget()

    def evaluate(self, heldout: Shard) -> float:
        """Return the mean loss in nats on held-out data. Raises Problem E107 if there is too little memory, or
        ValueError if there are no loss units.
        """
        with memory_or_problem(), self._precision():
            return mean_loss(self.replica.model, self.replica.recipe, heldout, self.replica.device).loss


class Elsewhere:
    """A copy of a replica's parameters at one step, and the gradient sum of units computed with it.

    Together with the encoded gradient, it takes about `BYTES` per parameter.
    """

    BYTES = 24

    def __init__(self, trainer: Trainer, before: Before | None = None) -> None:
        """Copy the parameters as they are now. `before`: those of the step before, for `go_back`. Raises Problem E107
        if there is too little memory.
        """
        self._trainer, self.step, self._before = trainer, trainer.replica.step, before
        with memory_or_problem():
            self.parameters = trainer.replica.parameters.clone()
            self.fresh = torch.zeros_like(self.parameters)  # the last computed gradient
            self._sum = torch.zeros_like(self.parameters)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute with the copy in this block. The replica's own vectors stay as they are."""
        self._trainer.aim(self)
        try:
            yield
        finally:
            self._trainer.aim(None)

    def go_back(self) -> None:
        """Compute from now on with the parameters of the step before. The gradient sum stays as it is."""
        assert self._before is not None
        self.parameters.copy_(self._before.parameters)
        self.step = self._before.step

    def keep(self) -> None:
        """Add the last computed gradient to the sum."""
        self._sum.add_(self.fresh)

    def take_sum(self) -> NDArray[np.float32]:
        """Return the gradient sum [P] in CPU memory."""
        return self._sum.to("cpu", copy=True).numpy()


class UnitInHand:
    """Leased units and their batch, between `begin` and `finish`. Another program's loop always gets one unit."""

    def __init__(self, trainer: Trainer, units: tuple[Unit, ...]) -> None:
        replica = trainer.replica
        self.units, self.base_step = units, trainer.step
        self.model, self.device = replica.model, replica.device
        self._trainer = trainer
        self._recipe = replica.recipe.at(trainer.step)
        joined = trainer.batches.take(self._recipe, units, trainer.coming)
        self.batch, self._loss_units = joined.batch, joined.loss_units
        self._loss: torch.Tensor | float | None = None

    def summed_loss(self) -> torch.Tensor:
        """Return the loss in nats, on which another program's loop must call `backward()` once. Unlike
        `UnitInHand.backward`, this neither saves memory nor scales fp16 losses.
        """
        loss = self._trainer.loss(self._recipe, self.batch)
        self._loss = loss.detach()
        return loss

    @property
    def unit(self) -> Unit:
        """The single unit that another program's loop computes."""
        return self.units[0]

    @property
    def loss_units(self) -> int:
        """The batch's weight: how many of its tokens, crops or images have a loss."""
        return sum(self._loss_units)

    def backward(self) -> None:
        """Run the forward and backward passes, in parts if memory is short. Raises Problem E107 if memory still runs
        out.
        """
        loss_sum = None
        while loss_sum is None:
            loss_sum = self._trainer.gradient(self._recipe, self.batch)
        self._loss = loss_sum

    def finish(self) -> Computed | NonFinite:
        """Return the result. Raises ValueError if no loss was computed."""
        if self._loss is None:
            raise ValueError("a unit is finished after its loss was computed: summed_loss() or backward()")
        if isinstance(self._loss, torch.Tensor):
            loss_sum = float(self._loss)
            is_sound = self._trainer.is_sound(self._recipe, loss_sum)
        else:
            loss_sum, is_sound = self._loss, math.isfinite(self._loss)
        if not is_sound:
            return NonFinite(self.units)
        return Computed(self.units, self.base_step, loss_sum, self._loss_units)


class TriedUnit(UnitInHand):
    """Another machine's units. An error ends neither the loop that computes them nor this machine's own work."""

    def __init__(self, trainer: Trainer, units: tuple[Unit, ...]) -> None:
        self.units = units
        self._inner: UnitInHand | None = None
        with self._tries():
            self._inner = trainer.begin(*units)

    def backward(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            with self._tries():
                inner.backward()
                self._inner = inner

    def finish(self) -> Computed | NonFinite:
        return self._inner.finish() if self._inner is not None else NonFinite(self.units)

    @contextmanager
    def _tries(self) -> Iterator[None]:
        try:
            yield
        except (Problem, ValueError) as error:
            log.warning("units of an audit: %s", error)


def are_finite(values: torch.Tensor) -> bool:
    """Return True if all values are finite. A finite sum proves this in less time than checking each value."""
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def _parts(batch: Batch, samples: int) -> Iterator[Batch]:
    for start in range(0, len(batch[0]), samples):
        yield tuple(part[start : start + samples] for part in batch)


@contextmanager
def memory_or_problem() -> Iterator[None]:
    """Convert torch's out-of-memory errors, on GPU or CPU, to Problem E107."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not short:
            raise
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        raise Problem.of("E107", reason=reason) from error
