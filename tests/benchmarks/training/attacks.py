"""Held-out loss under attack, as a multiple of the loss without attackers. Some of eight strangers' machines are liars.

The coordinator works as shipped: it limits norms and weights, draws audits, gives verdicts and quarantines. So do the
mean, the sketches and the optimizer. The liars of a run know all true gradients of the round and each other; as
auditors, they clear each other and accuse everyone else. Sockets and real time are left out. Run
`python -m tests.benchmarks.training.attacks [--quick]`. The last line is one JSON object.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from peer_agent.averaging.aggregates import AGGREGATES
from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.sketches import BUCKETS, Signs
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Scalars, Unit
from peer_agent.protocol.messages import Shard
from peer_agent.protocol.recipe import Optimizer
from peer_agent.protocol.schedule import scalars_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.training.loop import Trainer, mean_loss
from peer_agent.training.model import layout_of
from peer_agent.training.optimizers import Moving, update
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.protocol.coordinator.stage import CONTEXT, RUN, TOKENS, Stage, peer_of
from tests.protocol.coordinator.stage import Trainer as Machine
from tests.publishing.texts import docstrings

MACHINES, BATCH = 8, 64  # samples of 15 tokens
HELD_OUT = 20_000  # tokens at the end of the text that are not trained on
SLEEP = 60  # steps for which a sleeper trains honestly
CLAIMS = 4  # units that a liar delivers in the time of one, for the attack with false claims of work
LETTERS = " etaoinsrhldcumfpgwybvk,.()`'\n-_=:\"*0123456789"
OPTIMIZER = Optimizer(learning_rate=0.01, warmup_steps=10)


class Gradient(NamedTuple):
    """The mean gradient of some units [P], and the loss summed over their tokens, in nats."""

    values: Floats
    loss_sum: float


class Learner(Protocol):
    elements: int
    tokens: int  # of the training part

    def gradient(self, units: Sequence[Unit], *, labels: int = 0) -> Gradient:
        """Compute a gradient. `labels`: added to every label, for a machine that learns wrong ones."""
        ...

    def apply(self, scalars: Scalars, averaged: Floats) -> None: ...

    def heldout(self) -> float:
        """Return the held-out loss in nats per token."""
        ...


class Letters:
    """A perceptron with one hidden layer that predicts a character from the three before it. 7,751 parameters."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        places = {letter: place for place, letter in enumerate(LETTERS, start=1)}
        text = torch.tensor([places.get(letter, 0) for letter in docstrings().lower()])
        self.text, self.held_out = text[:-HELD_OUT], text[-HELD_OUT:]
        self.tokens, size = len(self.text), len(LETTERS) + 1
        layers = torch.nn.Embedding(size, 8), torch.nn.Flatten(), torch.nn.Linear(24, 96), torch.nn.ReLU()
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(96, size))
        self.layout = layout_of(self.model)
        self.elements = self.layout.elements
        flat = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()
        torch.nn.utils.vector_to_parameters(flat, self.model.parameters())
        self.state = Moving(flat, torch.zeros_like(flat), torch.zeros_like(flat))

    def gradient(self, units: Sequence[Unit], *, labels: int = 0) -> Gradient:
        samples = [self.text[CONTEXT * n : CONTEXT * (n + 1)] for unit in units for n in range(unit.start, unit.stop)]
        loss, tokens = self._loss(torch.stack(samples), labels)
        parts = torch.autograd.grad(loss / tokens, list(self.model.parameters()))
        return Gradient(torch.cat([part.reshape(-1) for part in parts]).numpy(), float(loss.detach()))

    def _loss(self, samples: torch.Tensor, labels: int) -> tuple[torch.Tensor, int]:
        before = torch.nn.functional.pad(samples, (2, 0))
        windows = before.unfold(1, 3, 1)[:, : samples.shape[1] - 1].reshape(-1, 3)
        wanted = (samples[:, 1:].reshape(-1) + labels) % (len(LETTERS) + 1)
        return torch.nn.functional.cross_entropy(self.model(windows), wanted, reduction="sum"), len(wanted)

    def apply(self, scalars: Scalars, averaged: Floats) -> None:
        update(OPTIMIZER, scalars, self.layout, self.state, torch.from_numpy(averaged))

    def heldout(self) -> float:
        with torch.no_grad():
            loss, tokens = self._loss(self.held_out.reshape(1, -1), 0)
        return float(loss) / tokens


class Gpt2:
    """A GPT-2 of one layer that predicts bytes, computed by the agent's own loop. 21,408 parameters."""

    def __init__(self, seed: int) -> None:
        text = np.frombuffer(docstrings().encode(), np.uint8).astype(np.uint16)
        self.text, self.held_out, self.tokens = text[:-HELD_OUT], text[-HELD_OUT:], len(text) - HELD_OUT
        model = Model(layers=1, width=32, heads=2, context=CONTEXT)
        self.recipe = CausalLM(model=model, optimizer=OPTIMIZER, vocab=257, micro_batch=4, seed=seed)
        self.replica = Replica(self.recipe)
        self.trainer = Trainer(self.replica, RUN, [self.text], threads=1)
        self.wrong = [Trainer(self.replica, RUN, [(self.text + 1) % 256], threads=1)]
        self.elements = self.replica.layout.elements
        self.state = Moving(self.replica.parameters, self.replica.moment1, self.replica.moment2)

    def gradient(self, units: Sequence[Unit], *, labels: int = 0) -> Gradient:
        trainer = self.wrong[0] if labels else self.trainer
        for unit in units:
            done = trainer.compute(unit)
            assert isinstance(done, Computed)
            trainer.keep(done)
        taken = trainer.take_sum()
        return Gradient(taken.gradient_sum / np.float32(taken.loss_tokens), taken.loss_sum)

    def apply(self, scalars: Scalars, averaged: Floats) -> None:
        update(OPTIMIZER, scalars, self.replica.layout, self.state, torch.from_numpy(averaged))

    def heldout(self) -> float:
        return mean_loss(self.replica.model, self.recipe, self.held_out, torch.device("cpu")).loss


LEARNERS: Mapping[str, Callable[[int], Learner]] = {"mlp": Letters, "gpt2": Gpt2}


# --- attacks


class Seen(NamedTuple):
    """A liar's knowledge: its own true gradient, all honest ones, and a direction that stays the same."""

    own: Gradient
    honest: list[Floats]
    constant: Floats

    @property
    def mean(self) -> Floats:
        mean: Floats = np.mean(self.honest, axis=0, dtype=np.float32)
        return mean

    @property
    def usual(self) -> float:
        return median(float(np.linalg.norm(each)) for each in self.honest)


def _at(norm: float, values: Floats) -> Floats:
    scaled: Floats = values * np.float32(norm / max(float(np.linalg.norm(values)), 1e-12))
    return scaled


ATTACKS: Mapping[str, Callable[[Seen], Floats]] = {
    "flip": lambda seen: -seen.own.values,
    "flip x3": lambda seen: -3 * seen.own.values,
    "bound": lambda seen: _at(2 * seen.usual, -seen.mean),  # the largest norm that screening leaves as it is
    "little is enough": lambda seen: seen.mean - 1.5 * np.std(seen.honest, axis=0, dtype=np.float32),
    "inner product": lambda seen: -0.5 * seen.mean,
    "labels": lambda seen: seen.own.values,  # of wrong labels, see `_offered`
    "constant": lambda seen: _at(seen.usual, seen.constant),
    "zeros": lambda seen: np.zeros_like(seen.mean),
    "claims": lambda seen: -seen.own.values,  # of four times as many units as it computes
    "not numbers": lambda seen: np.full_like(seen.mean, np.nan),
    "x1000": lambda seen: 1000 * seen.own.values,
}
QUICK = ("flip", "bound", "little is enough", "claims")


# --- a run


class Outcome(NamedTuple):
    """`acted`: false gradients offered. `named_after`: for each liar, its updates until its work was proven false.

    `steps`: fewer than wanted if the run was paused because its loss rose.
    """

    loss: float
    steps: int
    acted: int
    named_after: list[int]
    wrongly_named: int


class Rule(NamedTuple):
    """`is_open`: strangers may join, so the coordinator limits their norms and weights. `audits`: it draws audits.

    `average`: how the recipe averages gradients.
    """

    is_open: bool
    audits: bool
    average: str = "mean"


RULES = {
    "defaults": Rule(True, True),
    "limits alone": Rule(True, False),
    "known people": Rule(False, False),
    "geometric median": Rule(True, True, "geometric median"),
    "centered clip": Rule(True, True, "centered clip"),
}
PLAIN = "plain mean"  # without a coordinator or any check, as hivemind averages


class Attacked:
    """A run of eight machines, each of another person, on a stage whose coordinator is the product's."""

    def __init__(self, learner: Learner, attack: str, liars: int, *, rule: Rule, steps: int, seed: int) -> None:
        self.learner, self.attack, self.rule = learner, attack, rule
        self.random = np.random.default_rng(seed)
        self.stage = Stage(
            batch=BATCH,
            steps=steps,
            values={"optimizer": OPTIMIZER, "rule": rule.average},
            elements=learner.elements,
            shards=(Shard("0" * 64, learner.tokens),),
            trusted=frozenset() if rule.is_open else None,
        )
        self.stage.relay()
        self.machines = {peer_of(f"m{n}"): self.stage.trainer(f"m{n}") for n in range(MACHINES)}
        self.liars = set(list(self.machines)[:liars])
        self.grid = grid_of(learner.elements)
        self.constant = self.random.standard_normal(learner.elements).astype(np.float32)
        self.acted = 0
        self.contributed = dict.fromkeys(self.machines, 0)
        self.named: dict[PeerId, int] = {}

    def run(self, *, sleeps: int = 0) -> Outcome:
        state = self.stage.state
        while state.step < state.recipe.target_steps and state.goal == "running":
            self._round(is_attacking=state.step >= sleeps)
        named = [self.named.get(liar, math.inf) for liar in sorted(self.liars)]
        after = [int(each) for each in named if each < math.inf]
        wrongly = len(self.named.keys() - self.liars)
        return Outcome(self.learner.heldout(), state.step, self.acted, after, wrongly)

    def _round(self, *, is_attacking: bool) -> None:
        stage, said = self.stage, len(self.stage.said)
        stage.seed = int(self.random.integers(2**62))
        self._accumulate(is_attacking)
        offered = self._offered(is_attacking)
        for peer, gradient in offered.items():
            if stage.state.phase is Phase.OFFER:
                norm = float(np.linalg.norm(gradient.values))
                machine, chunks = self.machines[peer], self.grid.chunks
                weights = (m.Weight(0, chunks, machine.samples * TOKENS),)
                stage.offer(machine, norm=norm, loss_sum=gradient.loss_sum, weights=weights)
        stage.close()
        if stage.state.phase is not Phase.REDUCE:
            return  # void: the coordinator begins another round
        if not self.rule.audits:
            stage.state.audits.clear()
        values = {slot.peer: offered[slot.peer].values for slot in stage.round.slots}
        self._answer_audits(stage.said[said:], values, is_attacking)
        averaged = self._averaged(values)
        self._reduce(averaged, values)
        record = stage.persist()
        self.learner.apply(record.scalars, averaged)
        for part in record.contributions:
            self.contributed[part.peer] += 1
        for command in stage.said[said:]:
            if isinstance(command, e.Reverse):
                self.named.setdefault(command.peer, self.contributed[command.peer])

    def _accumulate(self, is_attacking: bool) -> None:
        """Let all machines finish a unit each second. A liar that claims more finishes four."""
        stage = self.stage
        for _ in range(10_000):
            if stage.state.phase is not Phase.ACCUMULATE:
                return
            stage.wait(1.0)
            for peer, machine in self.machines.items():
                if stage.state.phase is Phase.ACCUMULATE:
                    claims = self.attack == "claims" and is_attacking and peer in self.liars
                    stage.compute(machine, CLAIMS if claims else 1)
        raise AssertionError(stage.state.waiting)

    def _offered(self, is_attacking: bool) -> dict[PeerId, Gradient]:
        with_work = {peer: machine for peer, machine in self.machines.items() if machine.samples}
        offered = {peer: self._computed(machine) for peer, machine in with_work.items()}
        honest = [gradient.values for peer, gradient in offered.items() if peer not in self.liars]
        for peer in self.liars & offered.keys() if is_attacking and honest else ():
            own = self._computed(with_work[peer], labels=1) if self.attack == "labels" else offered[peer]
            false = ATTACKS[self.attack](Seen(own, honest, self.constant)).astype(np.float32)
            offered[peer] = Gradient(false, offered[peer].loss_sum)
            self.acted += 1
        return offered

    def _computed(self, machine: Machine, labels: int = 0) -> Gradient:
        return self.learner.gradient(sorted(machine.done), labels=labels)

    def _averaged(self, values: Mapping[PeerId, Floats]) -> Floats:
        """Average each chunk as a reducer would."""
        averaged, round_ = list[Floats](), self.stage.round
        for chunk in self.grid:
            aggregate = AGGREGATES[round_.rule](lambda size: np.empty(size, np.float32))
            for number, slot in enumerate(round_.slots):
                own = _part(values[slot.peer], self.grid, chunk, chunk + 1).copy()
                aggregate.add(number, own, slot.weights[0].tokens, slot.scale)
            averaged.append(aggregate.close())
        return np.concatenate(averaged)

    def _reduce(self, averaged: Floats, values: Mapping[PeerId, Floats]) -> None:
        stage, seed = self.stage, self.stage.round.seed
        for span in stage.spans():
            part = _part(averaged, self.grid, span.first, span.stop).astype(np.float64)
            stage.sketches = {
                peer: _sketch(seed, self.grid, each, (span.first, span.stop)) for peer, each in values.items() if seed
            }
            stage.span_done(span, sum_squares=float(part @ part))

    def _answer_audits(self, said: Sequence[e.Command], values: Mapping[PeerId, Floats], is_attacking: bool) -> None:
        """Let each auditor answer. Liars clear each other and accuse everyone else."""
        state = self.stage.state
        sends = [each for each in said if isinstance(each, e.Send) and isinstance(each.message, m.Audit)]
        for send in sends:
            asked: Any = send.message
            audit = state.audits.get(asked.number)
            if audit is None:
                continue
            found = self.learner.gradient(sorted(asked.units))
            if is_attacking and audit.auditor in self.liars:
                found = Gradient((1 if audit.peer in self.liars else -1) * values[audit.peer], audit.loss_sum)
            sketch = sum(
                np.frombuffer(_sketch(asked.seed, self.grid, found.values, (part.first, part.stop)), "<f4")
                for part in asked.parts
            )
            assert isinstance(sketch, np.ndarray)
            tokens = sum(unit.samples for unit in asked.units) * TOKENS
            facts = {"sketch": sketch.astype("<f4").tobytes(), "loss_sum": found.loss_sum, "loss_tokens": tokens}
            self.stage.say(audit.auditor, m.Audited(run=RUN, number=asked.number, **facts))


def _part(values: Floats, grid: Grid, first: int, stop: int) -> Floats:
    return values[first * grid.chunk_elements : stop * grid.chunk_elements]


def _sketch(seed: int, grid: Grid, values: Floats, chunks: tuple[int, int]) -> bytes:
    signs, sketch = Signs(seed, grid.chunk_elements), np.zeros(BUCKETS, np.float32)
    for chunk in range(*chunks):
        signs.add(chunk, np.ascontiguousarray(_part(values, grid, chunk, chunk + 1)), sketch)
    return sketch.astype("<f4").tobytes()


def plain(model: str, attack: str, liars: int, *, steps: int, seed: int, sleeps: int = 0) -> Outcome:
    """Train with the plain mean of eight gradients, whatever they are."""
    learner, acted = LEARNERS[model](seed), 0
    recipe = CausalLM(model=Model(context=CONTEXT), optimizer=OPTIMIZER, target_steps=steps)
    constant = np.random.default_rng(seed).standard_normal(learner.elements).astype(np.float32)
    each = BATCH // MACHINES
    for step in range(steps):
        units = [
            Unit(0, 0, each * number, each * (number + 1)) for number in range(MACHINES * step, MACHINES * (step + 1))
        ]
        values = [learner.gradient([unit]).values for unit in units]
        if step >= sleeps and liars:
            for liar in range(liars):
                own = learner.gradient(units[liar : liar + 1], labels=int(attack == "labels"))
                values[liar] = ATTACKS[attack](Seen(own, values[liars:], constant)).astype(np.float32)
                acted += 1
        mean: Floats = np.mean(values, axis=0, dtype=np.float32)
        scalars = scalars_of(
            recipe, step=step + 1, sum_squares=float(np.square(mean, dtype=np.float64).sum()), tokens=1
        )
        learner.apply(scalars, mean)
    return Outcome(learner.heldout(), steps, acted, [], 0)


class Case(NamedTuple):
    model: str
    rule: str
    attack: str = "none"
    attackers: int = 0
    sleeper: bool = False

    def run(self, seed: int, steps: int) -> Outcome:
        sleeps = SLEEP if self.sleeper else 0
        if self.rule == PLAIN:
            return plain(self.model, self.attack, self.attackers, steps=steps, seed=seed, sleeps=sleeps)
        learner = LEARNERS[self.model](seed)
        run = Attacked(learner, self.attack, self.attackers, rule=RULES[self.rule], steps=steps, seed=seed)
        return run.run(sleeps=sleeps)


def measure(cases: Sequence[Case], steps: int, seeds: int) -> Figures:
    clean: dict[Case, list[Outcome]] = {}
    figures = list[Figures]()
    for case in cases:
        without = Case(case.model, case.rule)
        if without not in clean:
            clean[without] = [without.run(seed, steps) for seed in range(1, seeds + 1)]
            named = sum(outcome.wrongly_named for outcome in clean[without])
            say(f"{without.model} {without.rule}: {[round(each.loss, 4) for each in clean[without]]}, named {named}")
        found = [case.run(seed, steps) for seed in range(1, seeds + 1)]
        figures.append(case._asdict() | _figures(found, clean[without], case))
        say(
            " ".join(
                f"{key}={value:.4g}" if type(value) is float else f"{key}={value}" for key, value in figures[-1].items()
            )
        )
    honest = {f"{case.model} {case.rule}": median(each.loss for each in runs) for case, runs in clean.items()}
    named = sum(outcome.wrongly_named for runs in clean.values() for outcome in runs)
    return {"steps": steps, "seeds": seeds, "clean_loss": honest, "named_when_clean": named, "cases": figures}


def _figures(found: Sequence[Outcome], clean: Sequence[Outcome], case: Case) -> Figures:
    ratios = [ours.loss / theirs.loss for ours, theirs in zip(found, clean, strict=True)]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    named = [updates for outcome in found for updates in outcome.named_after]
    return {
        "of": MACHINES,
        "ratio": median(finite) if finite else None,
        "worst": max(finite, default=None),
        "diverged": len(ratios) - len(finite),  # runs whose loss is not a number
        "least_steps": min(outcome.steps for outcome in found),
        "acted": min(outcome.acted for outcome in found),
        "named": len(named),
        "named_after": median(named) - SLEEP * case.sleeper if named else None,
        "wrongly_named": sum(outcome.wrongly_named for outcome in found),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.training.attacks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four attacks on the perceptron, one seed")
    parser.add_argument("--models", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--attackers", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--rules", nargs="+", choices=(*RULES, PLAIN), default=["defaults"])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    wanted = parser.parse_args(arguments)
    if wanted.quick:
        wanted.models, wanted.attacks, wanted.seeds = ["mlp"], list(QUICK), 1
    torch.set_num_threads(1)
    cases = [
        Case(model, rule, attack, attackers, is_asleep)
        for model in wanted.models
        for rule in wanted.rules
        for attack in wanted.attacks
        for attackers in wanted.attackers
        for is_asleep in (False, True)
    ]
    return publish("attacks", lambda: measure(cases, wanted.steps, wanted.seeds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
