"""The contents of each size: every benchmark's arguments and time budget, and the set-ups and rivals of averaging."""

from typing import Literal, get_args

from msgspec import Struct

from peer_agent.protocol.recipe import Codec

Rival = Literal["hivemind", "gloo", "butterfly", "parameter_server"]
Wire = Codec | Literal["plan"]  # with "plan", the plan chooses codecs and contributors
Size = Literal["quick", "usual", "full"]

RIVALS: tuple[Rival, ...] = get_args(Rival)
SIZES: tuple[Size, ...] = get_args(Size)
MINUTES: dict[Size, int] = {"quick": 10, "usual": 60, "full": 180}


class Averaging(Struct, frozen=True):
    """A set-up of the averaging benchmark, its rivals, and the number of counted rounds. If `elements` is set, the
    rounds are many and short.
    """

    setup: str
    against: tuple[Rival, ...] = ()
    rounds: int = 5
    codecs: tuple[Wire, ...] = ("fp16",)
    elements: int = 0  # elements of the vector; 0 means the set-up's own number


class Job(Struct, frozen=True):
    """A benchmark, `python -m tests.benchmarks.NAME ARGUMENTS`, and the seconds after which it is stopped."""

    name: str
    budget_s: int
    arguments: tuple[str, ...] = ()


OURS: tuple[Rival, ...] = ("butterfly", "parameter_server")
FREE: tuple[Wire, ...] = ("fp16", "plan")  # rivals run beside the first codec only
MANY = Averaging("homes", rounds=50, elements=500_000)
SHORT = ("--setup", "albert-auxiliaries", "--elements", "3000000", "--rounds", "5")
FEWER = ("--elements", "3000000")  # fewer elements than the set-up `four` has

AVERAGING: dict[Size, tuple[Averaging, ...]] = {
    "quick": (Averaging("four", ("gloo",), 3),),
    "usual": (
        Averaging("four", ("gloo", "hivemind"), codecs=FREE),
        Averaging("homes", ("butterfly",), 3, FREE),
        MANY,
    ),
    "full": (
        MANY,
        Averaging("four", ("gloo", "hivemind", *OURS), codecs=FREE),
        Averaging("homes", ("hivemind", *OURS), codecs=FREE),
        Averaging("homes-rtt"),
        Averaging("A", ("gloo", "hivemind")),
        Averaging("B", rounds=3),
        Averaging("C", rounds=3),
        Averaging("D", ("gloo",), 3),
        Averaging("albert"),
        Averaging("albert-auxiliaries"),
        Averaging("regions"),
    ),
}

JOBS: dict[Size, tuple[Job, ...]] = {
    "quick": (
        Job("round", 60, ("--repeats", "3")),
        Job("plan", 45, ("--repeats", "3")),
        Job("coordinator", 45, ("--peers", "50", "--repeats", "1")),
        Job("start", 60, ("--repeats", "1")),
        Job("averaging", 285, ("--quick",)),
    ),
    "usual": (
        Job("round", 90),
        Job("sockets.forwarding", 60, ("--megabytes", "50")),
        Job("start", 90),
        Job("coordinator", 90),
        Job("long_run", 120),
        Job("day", 90),
        Job("redis_restarts", 90),
        Job("spectators", 90, ("--spectators", "500", "--steps", "5")),
        Job("crowd", 100, ("--machines", "100", "--seconds", "20")),
        Job("hostile", 90),
        Job("training.inner_loop", 60),
        Job("training.codecs", 220),
        Job("training.attacks", 120, ("--quick",)),
        Job("memory.training", 120),
        Job("memory.averaging", 110, ("--rounds", "150")),
        Job("plan", 30),
        Job("pages", 60, ("--steps", "1000", "--looks", "10")),
        Job("simulator", 180),
        Job("averaging", 1130, ("--usual",)),
        Job("trouble", 380, ("--of", "sender", *FEWER)),
        Job("overlap", 200, SHORT),
    ),
    "full": (
        Job("round", 120),
        Job("sockets.forwarding", 120),
        Job("start", 120),
        Job("coordinator", 180, ("--peers", "50", "200", "1000")),
        Job("long_run", 180),
        Job("day", 120),
        Job("redis_restarts", 120),
        Job("spectators", 180),
        Job("crowd", 180),
        Job("hostile", 1200, ("--rows", "all", "--seconds", "4")),
        Job("training.inner_loop", 90),
        Job("training.codecs", 300),
        Job("training.attacks", 240, ("--models", "mlp", "--attackers", "3")),
        Job("memory.training", 240),
        Job("memory.averaging", 300),
        Job("plan", 60),
        Job("pages", 240, ("--steps", "20000")),
        Job("simulator", 180),
        Job("averaging", 4930, ("--full",)),
        Job("trouble", 700, FEWER),
        Job("overlap", 1000),
    ),
}
