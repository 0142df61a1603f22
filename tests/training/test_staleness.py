"""Staleness 1 on real text: replicas have the same bits, the log can be replayed, and learning is nearly as good."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from demo.recipes import python_text
from peer_agent.averaging.codecs import Floats, decode_into
from peer_agent.averaging.contributor import Accumulator, Sending
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.log.records import Entry, Unit, digest_of, seal
from peer_agent.protocol.messages import DoneUnit, Weight
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.text.tokens import Tokens
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, Taken
from tests.end_to_end.rig import reference
from tests.training.commits import RUN, SITE_KEY, record_after, small_recipe, weighted_mean
from tests.training.test_exactness import BOUNDS, difference, write_folder

STEPS, LONG = 12, 60
MACHINES = ((0, 4), (4, 6))  # each machine's units in a batch of six
UNIT = 4  # samples
FEW_PER_CENT = 0.03


def text(characters: int) -> Tokens:
    return np.frombuffer(python_text().encode("ascii", "replace")[:characters], np.uint8).astype(np.uint16)


class Machine:
    def __init__(self, recipe: Recipe, shards: list[Tokens], units: tuple[int, int]) -> None:
        self.units, self.done = units, list[DoneUnit]()
        self.trainer = Trainer(Replica(recipe), RUN, shards)
        self.grid: Grid = grid_of(self.trainer.replica.layout.elements)
        self.accumulator = Accumulator(self.grid)

    def compute(self, batch: int) -> None:
        for number in range(*self.units):
            start = UNIT * (batch * 6 + number)
            result = self.trainer.compute(Unit(0, 0, start, start + UNIT))
            assert isinstance(result, Computed)
            self.trainer.keep(result)

    def offer(self) -> tuple[Taken, Sending]:
        taken = self.trainer.take_sum()
        self.accumulator.add(taken.gradient_sum)
        weights = (Weight(0, self.grid.chunks, taken.loss_tokens),)
        return taken, self.accumulator.offer("fp32", weights)

    def mean_of(self, sending: Sending) -> Floats:
        mean = np.empty(self.grid.elements, np.float32)
        for chunk, payload in enumerate(sending.payloads):
            start, stop = self.grid.bounds(chunk)
            decode_into("fp32", payload, mean[start:stop])
        return mean


def train(recipe: Recipe, shards: list[Tokens], steps: int) -> tuple[list[Machine], list[Entry]]:
    """Train machines and return them with the log. With staleness 1, they compute the whole next batch while a round
    is open.
    """
    machines, log = [Machine(recipe, shards, units) for units in MACHINES], list[Entry]()
    for machine in machines:
        machine.compute(0)
    for step in range(steps):
        offered = [machine.offer() for machine in machines]
        if recipe.staleness:
            for machine in machines:
                machine.compute(step + 1)
        means = [machine.mean_of(sending) for machine, (_, sending) in zip(machines, offered, strict=True)]
        sums = [mean * np.float32(taken.loss_tokens) for mean, (taken, _) in zip(means, offered, strict=True)]
        takings = [replace(taken, gradient_sum=sum_) for sum_, (taken, _) in zip(sums, offered, strict=True)]
        average = weighted_mean(takings)
        record = record_after(machines[0].trainer.replica, average, takings, exact=not (step and recipe.staleness))
        log.append(seal(SITE_KEY, record))
        for machine in machines:
            machine.trainer.replica.apply(record, digest_of(log[-1]), average)
            machine.accumulator.remove_averaged([(0, machine.grid.chunks)])
            if not recipe.staleness:
                machine.compute(step + 1)
        assert len({machine.trainer.replica.digest() for machine in machines}) == 1
    return machines, log


def test_the_log_with_its_stale_units_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, shards = replace(small_recipe(), staleness=1), [text(40_000)]
    machines, log = train(recipe, shards, STEPS)
    monkeypatch.setattr("tests.training.test_exactness.some_shards", lambda: shards)
    write_folder(tmp_path, recipe, log)
    weights = reference.main(tmp_path)
    flat = np.concatenate([tensor.numpy().ravel() for tensor in weights.values()])
    replica = machines[0].trainer.replica
    assert float(np.abs(replica.parameters.numpy() - flat).max()) <= BOUNDS["lamb"]
    fresh, _ = train(replace(recipe, staleness=0), shards, STEPS)
    assert difference(replica, fresh[0].trainer.replica) > 100 * BOUNDS["lamb"], "else staleness is not computed at all"


def test_staleness_of_one_step_learns_nearly_as_well() -> None:
    whole = text(200_000)
    heldout, shards = whole[:6000], [whole[6000:]]
    recipe = replace(small_recipe(learning_rate=0.03), target_steps=LONG)
    before = Trainer(Replica(recipe), RUN, shards).evaluate(heldout)
    losses = [train(replace(recipe, staleness=old), shards, LONG)[0][0].trainer.evaluate(heldout) for old in (0, 1)]
    print(f"held-out loss {before:.3f}; after {LONG} steps {losses[0]:.4f} and {losses[1]:.4f}")
    assert losses[0] < before - 1.0
    assert abs(losses[1] - losses[0]) <= FEW_PER_CENT * losses[0]
