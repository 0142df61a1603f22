"""What a size holds: every benchmark with its arguments and a budget, and the set-ups and rivals of averaging."""

from typing import Literal, get_args

from msgspec import Struct

Rival = Literal["hivemind", "gloo", "butterfly", "parameter_server"]
Size = Literal["quick", "usual", "full"]

RIVALS: tuple[Rival, ...] = get_args(Rival)
SIZES: tuple[Size, ...] = get_args(Size)
MINUTES: dict[Size, int] = {"quick": 10, "usual": 60, "full": 180}


class Averaging(Struct, frozen=True):
    """A set-up, beside whom, and how many rounds are counted; many short ones where it says how long the vector is."""

    setup: str
    against: tuple[Rival, ...] = ()
    rounds: int = 5
    elements: int = 0  # of the vector; 0: the set-up's own


class Job(Struct, frozen=True):
    """`python -m tests.benchmarks.NAME ARGUMENTS`, and the seconds after which it is ended."""

    name: str
    budget_s: int
    arguments: tuple[str, ...] = ()


OURS: tuple[Rival, ...] = ("butterfly", "parameter_server")
MANY = Averaging("homes", rounds=50, elements=500_000)

AVERAGING: dict[Size, tuple[Averaging, ...]] = {
    "quick": (Averaging("four", ("gloo",), 3),),
    "usual": (
        Averaging("four", ("gloo", "hivemind")),
        Averaging("homes", ("butterfly",)),
        MANY,
    ),
    "full": (
        MANY,
        Averaging("four", ("gloo", "hivemind", *OURS)),
        Averaging("homes", ("hivemind", *OURS)),
        Averaging("homes-rtt"),
        Averaging("A", ("gloo", "hivemind")),
        Averaging("B", ("gloo",)),
        Averaging("C"),
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
        Job("start", 90),
        Job("coordinator", 90),
        Job("long_run", 120),
        Job("day", 90),
        Job("redis_restarts", 90),
        Job("broadcast", 60),
        Job("hostile", 90),
        Job("training.replica", 60),
        Job("training.codecs", 240),
        Job("memory.training", 150),
        Job("memory.averaging", 120, ("--rounds", "200")),
        Job("plan", 60),
        Job("simulator", 240),
        Job("averaging", 1220, ("--usual",)),
        Job("trouble", 600, ("--of", "sender")),
    ),
    "full": (
        Job("round", 120),
        Job("arithmetic", 120),
        Job("links", 120),
        Job("start", 120),
        Job("coordinator", 180, ("--peers", "50", "200", "1000")),
        Job("long_run", 180),
        Job("day", 120),
        Job("redis_restarts", 120),
        Job("broadcast", 90),
        Job("hostile", 1200, ("--rows", "all", "--seconds", "4")),
        Job("training.replica", 90),
        Job("training.codecs", 300),
        Job("memory.training", 240),
        Job("memory.averaging", 400),
        Job("plan", 120),
        Job("simulator", 420),
        Job("averaging", 5660, ("--full",)),
        Job("trouble", 1200),
    ),
}
