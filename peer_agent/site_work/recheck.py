"""Compute logged contributions again on the site, and compare them with the sketches that reducers made of them.

The site does this if people dispute a machine's work, or if a run's loss has risen. The verdicts are its own
arithmetic, not a volunteer's word.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from peer_agent.averaging.contributor import NotFinite
from peer_agent.averaging.sketches import sketch_again
from peer_agent.protocol.coordinator.events import Gradient, Sketched, Verdict
from peer_agent.protocol.coordinator.round.audits import verdict
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import Contribution, Record, from_lines, open_record
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import NO_FILES, Shard, training_of
from peer_agent.site_work.replay import Logs, Tell, apply_entry
from peer_agent.training.loop import Elsewhere, Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed

BUDGET_S = 600.0  # for all contributions


class Found(Struct, frozen=True):
    """The verdict on a machine's contribution to the log entry `index`."""

    index: int
    step: int
    machine: PeerId
    verdict: Verdict


class Asked(Struct, frozen=True):
    """The contributions to compute again. `shards`: the SHA-256 of each shard of the run's data, in order."""

    run: RunId
    sketched: tuple[Sketched, ...]
    shards: tuple[str, ...]


class Rechecked(Struct, frozen=True):
    """The verdicts, in log order. `left`: how many contributions could not be computed; their verdict is UNCLEAR."""

    found: list[Found]
    left: int


class StoredShards:
    """The shards in a folder, by number. `digests`: their SHA-256, in order."""

    def __init__(self, recipe: Recipe, folder: Path, digests: Sequence[str]) -> None:
        self._load, self._folder, self._digests = training_of(recipe).load_shard, folder, digests
        self._last: tuple[int, Shard] | None = None

    def __getitem__(self, shard: int, /) -> Shard:
        if self._last is None or self._last[0] != shard:
            self._last = shard, self._load(self._folder / f"{self._digests[shard]}.safetensors")
        return self._last[1]


def recheck(
    *,
    recipe: Recipe,
    snapshot: Path,
    records: Path,
    asked: Path,
    shards: Path,
    logs: Logs,
    site_key: bytes,
    tell: Tell = lambda _: None,
    files: Path = NO_FILES,
    budget_s: float = BUDGET_S,
) -> Rechecked:
    """Replay records from a snapshot, and compute the contributions in `asked`, a file, again on the way.

    `records`: a folder with an entry in each file, named by its index. `shards`: a folder. Raises the errors of
    `replay`, and E111 if a shard is damaged.
    """
    wanted = msgspec.json.decode(asked.read_bytes(), type=Asked)
    chosen = {each.index: each for each in wanted.sketched}
    replica = Replica(recipe, files=files)
    replica.load(snapshot)
    replica.keeps_before = True
    trainer = Trainer(replica, wanted.run, StoredShards(recipe, shards, wanted.shards))
    found, left, spent_s = list[Found](), 0, 0.0
    for path in sorted(records.iterdir()):
        sealed, kept = from_lines(path.read_bytes()), chosen.get(int(path.stem))
        record = open_record(sealed, site_key) if kept is not None else None
        for part in record.contributions if record is not None else ():
            if kept is None or record is None or part.peer not in kept.gradients:
                continue
            began = time.monotonic()
            judged = _judged(trainer, record, part, kept, began + budget_s - spent_s)
            spent_s += time.monotonic() - began
            left += judged is None
            found.append(Found(record.index, record.step, part.peer, judged or Verdict.UNCLEAR))
        apply_entry(replica, sealed, logs, site_key)
        tell(replica.step)
    return Rechecked(found, left)


def _judged(trainer: Trainer, record: Record, part: Contribution, kept: Sketched, until: float) -> Verdict | None:
    """Return the verdict on a contribution, or None if it could not be computed in time.

    Nor can it be if it needs parameters that the replay did not pass through.
    """
    before = trainer.replica.before
    if part.stale and before is None:
        return None
    again, loss_sum, loss_tokens = Elsewhere(trainer, before), 0.0, 0
    stale = set(part.stale)
    fresh = [unit for unit in part.units if unit not in stale]
    for number, unit in enumerate((*fresh, *part.stale)):
        if time.monotonic() > until:
            return None
        if number == len(fresh):
            again.go_back()
        with again.used():
            done = trainer.compute(unit)
        if not isinstance(done, Computed):
            return None  # an honest machine's gradient may be finite where this one's is not
        again.keep()
        loss_sum, loss_tokens = loss_sum + done.loss_sum, loss_tokens + sum(done.loss_tokens)
    grid = Grid(record.elements, record.chunk_elements)
    try:
        sketch = sketch_again(
            again.take_sum(), loss_tokens, codec=part.codec, grid=grid, parts=kept.parts, seed=kept.seed
        )
    except NotFinite:
        return None
    return verdict(kept.gradients[part.peer], Gradient(sketch, loss_sum, loss_tokens), part.codec)
