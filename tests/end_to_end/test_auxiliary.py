"""Averaging on members' machines: an auxiliary without torch, and trainers that listen, with and without a relay."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from demo.processes import ROOT
from demo.visitor import Visitor
from peer_agent.relay.place import SEEN
from tests.end_to_end.rig.swarm import Swarm

HERE = str(ROOT)  # the agent of this checkout, even if another version is installed
AVERAGED = re.compile(r"step ([\d,]+): .* ([\d.]+) [kMG]B averaged here")


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Swarm(tmp_path_factory.mktemp("auxiliary")) as swarm:
        swarm.start_site(options="--no-relay")
        yield swarm


def start_auxiliary(swarm: Swarm, name: str, token: str) -> None:
    options = "--auxiliary --host 127.0.0.1"
    swarm.start_agent(name, token=token, options=options, PYTHONPATH=HERE)


def reducers(swarm: Swarm, home: Path) -> dict[int, set[str]]:
    return {record["step"]: {span[4] for span in record["spans"]} for record in swarm.records(home)}


def has_torch(swarm: Swarm, name: str) -> bool:
    maps = Path(f"/proc/{swarm.processes[name].pid}/maps")
    return "libtorch" in maps.read_text()


def test_a_run_moves_by_a_members_machine_that_averages(swarm: Swarm, english: str) -> None:
    organizer = swarm.sign_up("organizer")
    swarm.open_endless_run(organizer, english)
    swarm.start_agent("a", token=swarm.token_of(organizer), PYTHONPATH=HERE)
    swarm.wait(lambda: "no relay is connected" in swarm.facts()["waiting_for"], 300, "nobody averages")
    start_auxiliary(swarm, "nas", swarm.token_of(organizer))
    swarm.wait_for_step(3)
    assert not has_torch(swarm, "nas")
    assert [member["state"] for member in swarm.online("auxiliary")] == ["ready"]
    swarm.wait(lambda: AVERAGED.search(swarm.log("nas")), 30, "it says what it has averaged")
    swarm.start_agent("b", token=swarm.token_of(organizer), PYTHONPATH=HERE)
    swarm.wait(lambda: swarm.made("b") >= 4, 300, "who comes later has the log of the auxiliary alone")
    agree = swarm.digests("a").items() & swarm.digests("b").items()
    assert agree, "and the same state"
    _is_credited(swarm, organizer)
    _beside_a_relay(swarm)
    swarm.processes["nas"].send_signal(signal.SIGINT)
    assert swarm.processes["nas"].wait(90) == 0
    said = swarm.log("nas").splitlines()
    assert "This machine has left. It averaged" in said[-1]
    assert not any(word in swarm.log("nas") for word in ("Traceback", "E376"))


def _is_credited(swarm: Swarm, organizer: Visitor) -> None:
    """Require that the API and the page show how many bytes the auxiliary averaged, beside the same person's
    samples."""
    given = organizer.read_json(f"runs/{swarm.slug}/leaderboard")["averaged"]
    assert [line["name"] for line in given] == ["organizer"]
    assert given[0]["bytes_averaged"] > 0
    page = organizer.read(f"/runs/{swarm.slug}/")
    assert '<th scope="col" class="number">Averaged</th>' in page
    assert "1 auxiliary" in page


def _beside_a_relay(swarm: Swarm) -> None:
    swarm.start_relay("relay", swarm.token_of(swarm.operator()), PYTHONPATH=HERE)
    swarm.wait(lambda: swarm.online("relay"), 60, "the relay is here")
    home = swarm.folder / "nas"
    swarm.wait(lambda: len(set.union(*reducers(swarm, home).values())) == 2, 300, "the relay has a part")


# --- trainers that listen ----------------------------------------------------------------------------------------


def test_two_that_listen_need_no_relay(tmp_path: Path, english: str) -> None:
    """Each trainer reduces for the other, and both keep the log."""
    with Swarm(tmp_path) as swarm:
        swarm.start_site(options="--no-relay")
        organizer = swarm.sign_up("organizer")
        swarm.open_endless_run(organizer, english, trainers=2)
        for name in ("a", "b"):
            token = swarm.token_of(organizer)
            swarm.start_agent(name, token=token, options="--listen --host 127.0.0.1", PYTHONPATH=HERE)
        swarm.wait(lambda: swarm.made("a") >= 3 and swarm.made("b") >= 3, 180, "steps without a relay")
        assert SEEN in swarm.log("a")
        assert swarm.digests("a").items() & swarm.digests("b").items(), "the same state"
        logs = [swarm.records(swarm.folder / name) for name in ("a", "b")]
        assert all(logs), "both keep the log"
        assert len({span[4] for record in logs[0] for span in record["spans"]}) == 2, "and both average"
        swarm.processes["a"].send_signal(signal.SIGINT)
        assert swarm.processes["a"].wait(90) == 0
        for name in ("a", "b"):
            assert "Traceback" not in swarm.log(name)
