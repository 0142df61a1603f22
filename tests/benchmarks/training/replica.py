"""Seconds per optimizer step on one thread, compared with torch's own AdamW. Described in README.md."""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from peer_agent.protocol.log.digests import state_digest
from peer_agent.protocol.log.records import digest_of, seal
from peer_agent.protocol.recipe import Optimizer
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.training.optimizers import Moving, update
from peer_agent.training.replica import Replica
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.training.commits import SITE_KEY, record_after

SHAPES = {"small": Model(layers=2, width=128, context=128), "large": Model(layers=6, width=320, context=256)}
OURS = {"lamb": Optimizer(name="lamb"), "adamw": Optimizer(name="adamw", epsilon=1e-8, learning_rate=0.001)}
Vector = NDArray[np.float32]
Work = Callable[[], object]


def timed(work: Work) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def ours(replica: Replica, gradient: torch.Tensor) -> Work:
    scalars = record_after(replica, gradient.numpy()).scalars
    state = Moving(replica.parameters, replica.moment1, replica.moment2)
    return lambda: update(replica.recipe.optimizer, scalars, replica.layout, state, gradient)


def applied(replica: Replica, gradient: Vector) -> Work:
    """Prepare the next record. Return a function that applies it as an agent does at a commit."""
    record = record_after(replica, gradient)
    digest = digest_of(seal(SITE_KEY, record))
    return lambda: replica.apply(record, digest, gradient)


def of_torch(tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> Work:
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer = torch.optim.AdamW(parameters, lr=0.001, foreach=False)
    optimizer.step()  # the first step creates the moments
    return optimizer.step


def measure(repeats: int) -> Figures:
    torch.set_num_threads(1)
    figures: Figures = {"repeats": repeats}
    for name, shape in SHAPES.items():
        figures[name] = _of_model(shape, repeats)
        say(f"the {name} model is done")
    small, large = (figures[name]["s_per_step_per_million"] for name in SHAPES)
    figures["growth"] = {kind: large[kind] / small[kind] for kind in small}
    return figures


def _of_model(shape: Model, repeats: int) -> Figures:
    replicas = {name: Replica(CausalLM(model=shape, optimizer=optimizer)) for name, optimizer in OURS.items()}
    lamb = replicas["lamb"]
    elements = lamb.layout.elements
    gradient = np.random.default_rng(1).standard_normal(elements, dtype=np.float32)
    averaged = torch.from_numpy(gradient)
    pieces = lamb.layout.pieces
    works = {name: ours(replica, averaged) for name, replica in replicas.items()} | {
        "torch_adamw": of_torch([lamb.parameters], [averaged]),
        "torch_adamw_by_tensor": of_torch([p.of(lamb.parameters) for p in pieces], [p.of(averaged) for p in pieces]),
        "digest": lamb.digest,
        "digest_numpy": lambda: state_digest(*(v.numpy() for v in (lamb.parameters, lamb.moment1, lamb.moment2))),
    }
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(1 + repeats):
        for name, work in works.items():
            seconds[name].append(timed(work))
        seconds["apply_lamb"].append(timed(applied(lamb, gradient)))
    counted = {name: times[1:] for name, times in seconds.items()}
    medians = {name: median(times) for name, times in counted.items()}
    return {
        "parameters": elements,
        "tensors": len(pieces),
        "s_per_step_per_million": {name: 1e6 * value / elements for name, value in medians.items()},
        "ratio_to_torch_adamw": {
            name: median(a / b for a, b in zip(times, counted["torch_adamw"], strict=True))
            for name, times in counted.items()
        },
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.training.replica", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    wanted = parser.parse_args(arguments)
    return publish("replica", lambda: measure(wanted.repeats))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
