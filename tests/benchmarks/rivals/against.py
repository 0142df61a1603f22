"""Runs the rivals of a set-up one after another in its namespaces, and compares their rounds with ours."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from peer_agent.protocol.identifiers import PeerId
from tests.benchmarks.rig.figures import Figures, say
from tests.benchmarks.rivals import seats
from tests.benchmarks.rivals.environment import Unavailable, interpreter
from tests.benchmarks.rivals.place import WARM_UP, Place, open_homes
from tests.benchmarks.rivals.plans import Solve, best_connected, butterfly, parameter_server
from tests.benchmarks.rivals.rounds import Seat, measured
from tests.benchmarks.suite.sizes import Rival
from tests.emulation.setups import Setup

HEADLINES = ("cpu_s_per_gb", "peak_mb", "rounds_partial", "rounds_failed", "is_valid")
Engine = Callable[[Setup, Solve], Figures]  # makes our own rounds with another plan
Row = tuple[str, Callable[[], Figures]]


def compared(place: Place, wanted: Sequence[Rival], ours: Figures, engine: Engine, ids: dict[str, PeerId]) -> Figures:
    """Return the figures of each rival. A rival that could not be measured is listed with the reason."""
    found: Figures = {}
    left_out: dict[str, str] = {}
    for name, measure in rows(place, wanted, engine, ids):
        say(f"beside {name}")
        try:
            found[name] = measure()
        except (Unavailable, TimeoutError) as reason:
            left_out[name] = str(reason) or f"no {place.rounds} rounds in {place.patience_s:.0f} s"
    return summary(found, ours.get("round_s_median")) | {"left_out": left_out, "details": found}


def summary(found: Figures, round_s: float | None) -> Figures:
    """Return the main figures of each rival by name, and the ratio of each rival's time to ours."""
    shown: Figures = {}
    for name, figures in found.items():
        shown[f"{name}_s"] = figures["round_s"]
        shown |= {f"{name}_{headline}": figures[headline] for headline in HEADLINES if headline in figures}
        if round_s is not None and figures["round_s"] is not None:
            shown[f"ratio_to_{name}"] = figures["round_s"] / round_s
    return shown


def rows(place: Place, wanted: Sequence[Rival], engine: Engine, ids: dict[str, PeerId]) -> Iterator[Row]:
    """Yield each rival with its measurement. Rivals that change the namespaces come last."""
    setup = place.network.setup
    if "gloo" in wanted:
        yield "gloo", partial(gloo, place)
    if "hivemind" in wanted:
        yield "hivemind_default", partial(hivemind, place, best=False)
        yield "hivemind_best", partial(hivemind, place, best=True)
    if "parameter_server" in wanted:
        server = best_connected(setup, place.rates)
        yield "parameter_server", lambda: engine(setup, parameter_server(ids[server])) | {"server": server}
    if "butterfly" in wanted:
        yield "butterfly", partial(equal_shares, place, engine)


def gloo(place: Place) -> Figures:
    """Measure gloo. Raise Unavailable unless all peers can reach each other."""
    if reason := seats.reason_against_gloo(place.network.setup, place.codec):
        raise Unavailable(reason)
    return rival(place, partial(seats.gloo, place.network, place.codec))


def hivemind(place: Place, *, best: bool) -> Figures:
    """Measure hivemind. Raise Unavailable if its virtual environment cannot be created."""
    python = interpreter()
    return rival(place, lambda _: seats.hivemind(place.network, place.codec, python, place.rates, best=best))


def rival(place: Place, seated: Callable[[Path], Sequence[Seat]]) -> Figures:
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        return measured(
            place.network, seated(Path(folder)), Path(folder), (WARM_UP, place.rounds), place.round_patience_s
        )


def equal_shares(place: Place, engine: Engine) -> Figures:
    """Measure our engine with equal shares for all trainers.

    Trainers behind NAT can dial each other, as if forwarding were free. One relay keeps the log, as the floor time
    assumes.
    """
    setup = place.network.setup
    hidden = any(not peer.reachable for peer in setup.peers)
    if hidden:
        open_homes(place.network)
    return engine(opened(setup) if hidden else setup, butterfly) | {"forwarding_is_free": hidden}


def opened(setup: Setup) -> Setup:
    """Return the set-up with all peers reachable, and with no relay except the keeper of the log."""
    kept = (peer for peer in setup.peers if peer.role != "relay" or peer.name == setup.keeper)
    return replace(setup, peers=tuple(replace(peer, reachable=True) for peer in kept))
