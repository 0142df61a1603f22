"""What a size holds: every benchmark with its arguments and a budget, and the set-ups and rivals of averaging."""

from typing import Literal, get_args

from msgspec import Struct

Rival = Literal["hivemind", "gloo", "butterfly", "parameter_server"]
Size = Literal["quick", "usual", "full"]

RIVALS: tuple[Rival, ...] = get_args(Rival)
SIZES: tuple[Size, ...] = get_args(Size)
MINUTES: dict[Size, int] = {"quick": 10, "usual": 60, "full": 180}


class Averaging(Struct, frozen=True):
    """A set-up, beside whom, and how many rounds are counted."""

    setup: str
    against: tuple[Rival, ...] = ()
    rounds: int = 5


class Job(Struct, frozen=True):
    """`python -m tests.benchmarks.NAME ARGUMENTS`, and the seconds after which it is ended."""

    name: str
    budget_s: int
    arguments: tuple[str, ...] = ()


OURS: tuple[Rival, ...] = ("butterfly", "parameter_server")

AVERAGING: dict[Size, tuple[Averaging, ...]] = {
    "quick": (Averaging("four", ("gloo",), 3),),
    "usual": (
        Averaging("four", ("gloo", "hivemind", *OURS)),
        Averaging("homes", ("hivemind", "butterfly")),
    ),
    "full": (
        Averaging("four", ("gloo", "hivemind", *OURS)),
        Averaging("homes", ("hivemind", *OURS)),
        Averaging("homes-rtt"),
        Averaging("A", ("gloo", "hivemind", *OURS)),
        Averaging("B", ("gloo",)),
        Averaging("C", ("gloo",)),
        Averaging("D", ("gloo",)),
        Averaging("albert"),
        Averaging("albert-auxiliaries"),
        Averaging("regions"),
    ),
}

JOBS: dict[Size, tuple[Job, ...]] = {
    "quick": (
        Job("round", 60, ("--repeats", "3")),
        Job("arithmetic", 60, ("--repeats", "2")),
        Job("plan", 45, ("--repeats", "3")),
        Job("coordinator", 45, ("--peers", "50", "--repeats", "1")),
        Job("training.replica", 45, ("--repeats", "5")),
        Job("start", 60, ("--repeats", "1")),
        Job("averaging", 285, ("--quick",)),
    ),
    "usual": (
        Job("round", 90),
        Job("arithmetic", 90),
        Job("links", 90),
        Job("forwarding", 90),
        Job("start", 90),
        Job("coordinator", 90),
        Job("long_run", 120),
        Job("day", 90),
        Job("redis_restarts", 90),
        Job("broadcast", 60),
        Job("hostile", 90),
        Job("training.replica", 60),
        Job("training.codecs", 300),
        Job("memory", 150),
        Job("plan", 60),
        Job("simulator", 240),
        Job("averaging", 1800, ("--usual",)),
    ),
    "full": (
        Job("round", 120),
        Job("arithmetic", 120),
        Job("links", 120),
        Job("forwarding", 120),
        Job("start", 120),
        Job("coordinator", 180, ("--peers", "50", "200", "1000")),
        Job("long_run", 180),
        Job("day", 120),
        Job("redis_restarts", 120),
        Job("broadcast", 90),
        Job("hostile", 1200, ("--rows", "all", "--seconds", "4")),
        Job("training.replica", 90),
        Job("training.codecs", 600),
        Job("memory", 240),
        Job("plan", 120),
        Job("simulator", 480),
        Job("averaging", 6600, ("--full",)),
    ),
}
