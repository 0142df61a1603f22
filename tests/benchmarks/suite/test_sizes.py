"""A benchmark run of each size fits into the minutes stated for it and includes every benchmark."""

from pathlib import Path

import pytest

from tests.benchmarks import averaging, overlap, trouble
from tests.benchmarks.suite import runner
from tests.benchmarks.suite.sizes import AVERAGING, JOBS, MINUTES, SIZES, Size
from tests.emulation.setups import SETUPS

HERE = Path(runner.__file__).parents[1]
MODULES = {path.stem for path in HERE.glob("[a-z]*.py")}
ROOMS = ("training", "memory", "sockets")
MODULES |= {f"{room}.{path.stem}" for room in ROOMS for path in (HERE / room).glob("[a-z]*.py")}
ALONE = {
    "bombs",
    "checking",
    "credit",
    "faults",
    "training.verdicts",
}  # they give no speed to compare, so each is run by itself
MODULES = {name for name in MODULES if "test_" not in name} - ALONE


@pytest.mark.parametrize("size", SIZES)
def test_budgets_fit_into_the_minutes_that_are_promised(size: Size) -> None:
    assert sum(job.budget_s for job in JOBS[size]) <= 60 * MINUTES[size]


@pytest.mark.parametrize("size", SIZES)
def test_all_of_it_is_there_and_nothing_twice(size: Size) -> None:
    names = [job.name for job in JOBS[size]]
    assert len(names) == len(set(names))
    assert set(names) <= MODULES
    if size != "quick":
        assert set(names) == MODULES


@pytest.mark.parametrize("size", SIZES)
def test_averaging_job_gets_its_size_and_finds_its_setups(size: Size) -> None:
    job = next(job for job in JOBS[size] if job.name == "averaging")
    asked = averaging.jobs_of(averaging.parser().parse_args(list(job.arguments)))
    assert [(each.setup.name, each.codecs, each.against, each.rounds) for each in asked] == [
        (each.setup, each.codecs, each.against, each.rounds) for each in AVERAGING[size]
    ]
    assert {each.setup for each in AVERAGING[size]} <= SETUPS.keys()


@pytest.mark.parametrize("size", ["usual", "full"])
def test_reliability_is_counted_on_fifty_short_rounds_behind_nat(size: Size) -> None:
    (job,) = (job for job in JOBS[size] if job.name == "averaging")
    asked = averaging.jobs_of(averaging.parser().parse_args(list(job.arguments)))
    (many,) = (each for each in asked if each.is_many)
    assert (many.setup.name, many.setup.elements, many.rounds) == ("homes", 500_000, 50)
    assert all(each.setup.elements == SETUPS[each.setup.name].elements for each in asked if not each.is_many)


@pytest.mark.parametrize("size", ["usual", "full"])
def test_troubles_are_of_the_setup_with_all_parts(size: Size) -> None:
    (job,) = (job for job in JOBS[size] if job.name == "trouble")
    asked = trouble.jobs_of(trouble.parser().parse_args(list(job.arguments)))
    assert {each.setup.name for each in asked} == {"four"}
    parts: set[trouble.Part] = {"sender"} if size == "usual" else {"sender", "reducer"}
    assert {(each.kind, each.part) for each in asked} == {
        (kind, part) for kind in ("slow", "stopped") for part in parts
    }


def test_full_size_covers_all_setups_and_hivemind_where_asked() -> None:
    assert {each.setup for each in AVERAGING["full"]} == SETUPS.keys()
    assert {each.setup for each in AVERAGING["full"] if "hivemind" in each.against} == {"A", "four", "homes"}
    assert {each.setup for each in AVERAGING["full"] if "plan" in each.codecs} == {"four", "homes"}


def test_manual_request_is_one_setup_with_each_rival_once() -> None:
    rivals = [word for name in ("gloo", "hivemind", "gloo") for word in ("--against", name)]
    words = ["--setup", "four", "--scale", "0.5", "--rounds", "2", *rivals]
    (asked,) = averaging.jobs_of(averaging.parser().parse_args(words))
    assert (asked.setup.name, asked.setup.scale, asked.rounds) == ("four", 0.5, 2)
    assert asked.against == ("gloo", "hivemind")
    assert asked.codecs == ("fp16",)


@pytest.mark.parametrize(("words", "stated"), [("plan", "fp16"), ("int8 plan int8", "int8")])
def test_rivals_send_the_first_codec_that_is_none_of_the_plans(words: str, stated: str) -> None:
    given = [word for codec in words.split() for word in ("--codec", codec)]
    (asked,) = averaging.jobs_of(averaging.parser().parse_args([*given, "--elements", "5000"]))
    assert (asked.codecs, asked.stated) == (tuple(dict.fromkeys(words.split())), stated)
    assert asked.setup.elements == 5000


@pytest.mark.parametrize("size", SIZES)
def test_overlap_knows_its_arguments_and_has_time_for_them(size: Size) -> None:
    for job in (job for job in JOBS[size] if job.name == "overlap"):
        asked = overlap.parser().parse_args(list(job.arguments))
        assert asked.rounds >= 10 or size == "usual"
