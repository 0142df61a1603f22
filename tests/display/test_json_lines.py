"""The output of `join --json`: every line is an object that docs/reference/json-lines.md describes."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from peer_agent.display.json_lines import FIGURES, JsonLinesView
from peer_agent.display.lines import View
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.log.records import open_head
from peer_agent.site.enrolment import Code
from tests.agent.program import Answer, http_site, known_at, manyhands, refusal
from tests.agent.scripted_site import commits
from tests.protocol.identities import SITE_PUBLIC

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json-lines.md"


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def everything() -> list[dict[str, Any]]:
    stream = io.StringIO()
    view = JsonLinesView(stream)
    view.ask_for_approval(Code("x", "BCDF-GHJK", "https://a/device/", "https://a/device/?code=BCDF-GHJK", 900, 2))
    all_that_happens(view)
    return read(stream)


def all_that_happens(view: View) -> None:
    """Call every method of a view once."""
    view.newer(Fault.of("E126", theirs="2", ours="1", line="pip install it"))
    view.preflight(Preflight(device="CPU"))
    view.say("Loading")
    view.warn("The model is overfitting.")
    view.tell("listening", "Listening at port 4000.", port=4000)
    view.state("running", "")
    view.refresh()
    view.step(open_head(commits(1, 8, 8)[0].record, SITE_PUBLIC), None)
    view.first_credit(1, 7)
    view.began(Fault.of("E138", free="1 GB", path="/a"))
    view.ended("E138")
    view.fault(Fault.of("E109", step=3))
    for event in ("on_hold", "resumed", "moving"):  # `MachineControl` and `join_run` report these events
        view.tell(event, "in a sentence")
    view.leaves(3)
    view.farewell()


def test_every_event_is_described() -> None:
    told = everything()
    described = set(re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text().partition("| event |")[2], flags=re.MULTILINE))
    assert {event["event"] for event in told} == described
    for event in told:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", event["at"])


def test_figures_and_errors_have_their_numbers() -> None:
    told = {event["event"]: event for event in everything()}
    assert set(FIGURES) < set(told["figures"])
    error = told["error"]
    assert (error["code"], error["title"], error["severity"]) == ("E109", "Copy of the model differs", "medium")
    trouble = {"code": "E138", "title": "Little disk space left", "severity": "medium"}
    assert trouble.items() <= told["trouble"].items()
    assert told["trouble"]["text"].startswith("Only 1 GB is free on the disk of /a. ")
    assert (told["solved"]["code"], told["solved"]["title"]) == ("E138", "Little disk space left")
    assert {"step": 1, "loss": 1.0, "machines": 0, "samples": 1, "from_here": 0}.items() <= told["step"].items()
    assert {"step": 1, "samples": 7}.items() <= told["first_credit"].items()
    assert (told["approval"]["code"], told["state"]["state"]) == ("BCDF-GHJK", "running")


def test_figures_come_every_few_seconds_and_at_each_change() -> None:
    stream, now = io.StringIO(), 0.0
    view = JsonLinesView(stream)
    view.clock = lambda: now
    for second, doing in ((0, "loading"), (4.9, "loading"), (5, "training"), (9.9, "training"), (10, "training")):
        now, view.now.doing, view.now.samples = second, doing, int(second)
        view.refresh()
    told = [(event["doing"], event["samples"]) for event in read(stream)]
    assert told == [("loading", 0), ("training", 5), ("training", 10)]


def test_what_ends_it_is_an_event_too() -> None:
    stream = io.StringIO()
    with pytest.raises(Problem), JsonLinesView(stream).hears_errors():
        raise Problem.of("E214")
    assert [(event["event"], event["code"]) for event in read(stream)] == [("error", "E214")]


def test_the_command_says_nothing_but_objects(tmp_path: Path) -> None:
    issued: Answer = (409, refusal("E306"))
    with http_site(lambda _: issued) as url:
        known_at(tmp_path, url)
        done = manyhands(tmp_path, "join", f"{url}/runs/a/", "--json")
    assert done.returncode == 1
    (last,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (last["event"], last["code"]) == ("error", "E306")
    assert done.stderr.startswith("E306: ")
