"""The site computes logged contributions again, and finds those that were not the gradients of their samples."""

from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import save_file

from peer_agent.averaging.codecs import decode, encode, sum_squares
from peer_agent.averaging.sketches import sketch_again
from peer_agent.averaging.update_log import write_span
from peer_agent.protocol.coordinator.events import Gradient, Sketched, Verdict
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import leaf_of, root_of
from peer_agent.protocol.log.records import ChunkRange, SpanEntry, Unit, digest_of, seal, to_lines
from peer_agent.protocol.messages import DoneUnit
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.site_work.recheck import Asked, Found, Rechecked, recheck
from peer_agent.site_work.replay import Logs
from peer_agent.training.loop import Elsewhere, Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, Taken
from tests.site_work.test_main import run
from tests.training.commits import RUN, SITE_KEY, record_after, small_recipe, some_shards, take_units, weighted_mean

SEED, STEPS = 77, 5
HONEST, LIAR = PeerId(f"{0:032x}"), PeerId(f"{1:032x}")
OF_LIAR = [(step, Verdict.PASSED if step < 4 else Verdict.FAILED) for step in range(1, STEPS + 1)]  # since step 4


class Attacked:
    """A logged run of two machines. The second one's gradients are false from step `since` on."""

    def __init__(self, folder: Path, since: int, *, is_stale: bool = False) -> None:
        self.folder, self.since, self.sketched = folder, since, list[Sketched]()
        for name in ("log/spans", "records", "shards"):
            (folder / name).mkdir(parents=True)
        for number, tokens in enumerate(some_shards()):
            save_file({"tokens": tokens}, folder / "shards" / f"{number}.safetensors")
        self.replica = Replica(small_recipe())
        self.replica.keeps_before = True
        self.trainer = Trainer(self.replica, RUN, some_shards())
        self.replica.save(folder / "snapshot.safetensors")
        for step in range(STEPS):
            first = [Unit(0, 0, 8 * step, 8 * step + 4), Unit(0, 0, 8 * step + 4, 8 * step + 8)]
            stale = first[1:] if is_stale and step else []
            self.commit(self.computed(first, stale), take_units(self.trainer, [Unit(0, 1, 8 * step, 8 * step + 8)]))

    def computed(self, units: list[Unit], stale: list[Unit]) -> Taken:
        """Compute some of the units on the parameters of the step before."""
        both, loss, tokens, done = Elsewhere(self.trainer, self.replica.before), 0.0, 0, list[DoneUnit]()
        for unit in sorted(units, key=stale.__contains__):
            if unit in stale:
                both.go_back()
            with both.used():
                made = self.trainer.compute(unit)
            assert isinstance(made, Computed)
            both.keep()
            loss, tokens = loss + made.loss_sum, tokens + sum(made.loss_tokens)
            done.append(DoneUnit(unit, both.step))
        return Taken(both.take_sum(), tokens, loss, tuple(done))

    def commit(self, honest: Taken, other: Taken) -> None:
        replica, grid = self.replica, grid_of(self.replica.layout.elements)
        if replica.step + 1 >= self.since:
            other = Taken(-other.gradient_sum, other.loss_tokens, other.loss_sum, other.units)
        parts = (ChunkRange(0, grid.chunks),)
        seen = {
            peer: Gradient(
                sketch_again(taken.gradient_sum, taken.loss_tokens, codec="fp16", grid=grid, parts=parts, seed=SEED),
                taken.loss_sum,
                taken.loss_tokens,
            )
            for peer, taken in ((HONEST, honest), (LIAR, other))
        }
        average = weighted_mean([honest, other])
        record = record_after(replica, average, [honest, other])
        payloads = [encode("fp32", average[slice(*grid.bounds(chunk))]) for chunk in grid]
        leaves = [leaf_of(p, sum_squares(decode("fp32", p, len(p) // 4))) for p in payloads]
        entry: SpanEntry = msgspec.structs.replace(record.spans[0], root=root_of(leaves).hex())
        sealed = seal(SITE_KEY, msgspec.structs.replace(record, spans=(entry,)))
        write_span(self.folder / "log/spans" / f"{record.index:08d}-0.span", leaves, payloads)
        (self.folder / "records" / f"{record.index:012d}.json").write_bytes(to_lines(sealed))
        replica.apply(record, digest_of(sealed), average)
        self.sketched.append(Sketched(record.index, SEED, parts, seen))

    def recheck(self, sketched: list[Sketched] | None = None, budget_s: float = 600.0) -> Rechecked:
        asked = Asked(RUN, tuple(self.sketched if sketched is None else sketched), ("0", "1"))
        (self.folder / "asked").write_bytes(msgspec.json.encode(asked))
        return recheck(
            recipe=small_recipe(),
            snapshot=self.folder / "snapshot.safetensors",
            records=self.folder / "records",
            asked=self.folder / "asked",
            shards=self.folder / "shards",
            logs=Logs([self.folder / "log"]),
            site_key=public_bytes(SITE_KEY),
            budget_s=budget_s,
        )


def verdicts(found: Rechecked, peer: PeerId) -> list[tuple[int, Verdict]]:
    return [(each.step, each.verdict) for each in found.found if each.machine == peer]


@pytest.mark.parametrize("is_stale", [False, True])
def test_false_contributions_are_found_and_honest_ones_are_not(tmp_path: Path, *, is_stale: bool) -> None:
    found = Attacked(tmp_path, since=4, is_stale=is_stale).recheck()
    assert found.left == 0
    assert verdicts(found, HONEST) == [(step, Verdict.PASSED) for step in range(1, STEPS + 1)]
    assert verdicts(found, LIAR) == OF_LIAR


def test_only_what_was_asked_is_computed(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path, since=1)
    last = attacked.sketched[-1]
    only = Sketched(last.index, last.seed, last.parts, {LIAR: last.gradients[LIAR]})
    assert attacked.recheck([only]).found == [Found(STEPS, STEPS, LIAR, Verdict.FAILED)]


def test_what_time_does_not_suffice_for_is_counted(tmp_path: Path) -> None:
    found = Attacked(tmp_path, since=1).recheck(budget_s=0.0)
    assert {each.verdict for each in found.found} == {Verdict.UNCLEAR}
    assert (len(found.found), found.left) == (2 * STEPS, 2 * STEPS)


def test_damaged_shard_has_a_number(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path, since=1)
    (tmp_path / "shards" / "1.safetensors").write_bytes(b"nothing")
    with pytest.raises(Problem, match="E111"):
        attacked.recheck()


def test_contribution_whose_record_was_changed_is_refused(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path, since=1)
    path = tmp_path / "records" / f"{STEPS:012d}.json"
    head, signature, contributions, *rest = path.read_bytes().split(b"\n")
    changed = contributions.replace(b'"machine 1"', b'"machine 2"')
    assert changed != contributions
    path.write_bytes(b"\n".join((head, signature, changed, *rest)))
    with pytest.raises(Problem, match="E218"):
        attacked.recheck()


def test_the_child_prints_what_it_found(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path, since=4)
    attacked.recheck()
    (tmp_path / "recipe.json").write_bytes(encode_recipe(small_recipe()))
    places = [tmp_path / name for name in ("recipe.json", "snapshot.safetensors", "records", "asked", "shards")]
    done = run("recheck", *places, "--site-key", public_bytes(SITE_KEY).hex(), "--log", tmp_path / "log")
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Rechecked)
    assert verdicts(found, LIAR) == OF_LIAR
