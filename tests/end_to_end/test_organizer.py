"""A run by invitation: members train, strangers are refused, and a removed member is disconnected.

Then the organizer ends the run early, and the site releases the step that the run has reached."""

import re
from pathlib import Path

import pytest

from demo.visitor import Refused, Visitor
from tests.end_to_end.rig.swarm import Swarm

LINK = re.compile(r"http://[^/]+(/runs/[\w-]+/join/[\w-]+/)")
REMOVE = re.compile(r'<tr><td>(\w+).*?action="(/runs/[\w-]+/members/\d+/)"', re.DOTALL)
LONG = 5000  # steps: more than the test waits for


def invited(swarm: Swarm, organizer: Visitor, name: str) -> Visitor:
    found = LINK.search(press(organizer, f"/runs/{swarm.slug}/manage/", "invitations/", most_uses="1", lifetime=""))
    assert found is not None
    person = swarm.sign_up(name)
    person.submit(found[1], {})
    assert person.address.endswith(f"/runs/{swarm.slug}/")
    return person


def press(person: Visitor, page: str, action: str, **fields: str) -> str:
    """Submit a form on `page` to the address of its `action`."""
    return person.submit(page, fields, action=page.replace("manage/", action))


def ledger_of(swarm: Swarm, reader: Visitor) -> list[str]:
    return [row["person"] for row in reader.read_items(f"runs/{swarm.slug}/ledger")]


def test_a_run_by_invitation_from_the_first_link_to_the_release(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.start_site()
        organizer, stranger = swarm.sign_up("amina"), swarm.sign_up("noor")
        swarm.draft(organizer, english, trainers=2, steps=LONG, visibility="private", snapshot_every="1000")
        organizer.publish(swarm.slug)

        def facts() -> dict[str, object]:
            return organizer.read_json(f"runs/{swarm.slug}")

        swarm.wait(lambda: facts()["state"] == "open", 120, "the run is prepared")
        teo, zoe = invited(swarm, organizer, "teo"), invited(swarm, organizer, "zoe")
        for person, name in ((teo, "teo"), (zoe, "zoe"), (stranger, "noor")):
            swarm.start_agent(name, token=swarm.token_of(person))

        # Members train. Other people cannot see the run.
        swarm.wait(lambda: {"teo", "zoe"} <= set(ledger_of(swarm, organizer)), 120, "both members train")
        swarm.wait(lambda: swarm.processes["noor"].poll() is not None, 60, "the stranger's agent gives up")
        assert "E305" in swarm.log("noor")
        with pytest.raises(Refused, match="HTTP 404"):
            stranger.read_json(f"runs/{swarm.slug}")
        assert teo.read_json("runs")["items"][0]["slug"] == swarm.slug
        assert stranger.read_json("runs")["items"] == []

        # A removed member is disconnected, and the others continue.
        manage = f"/runs/{swarm.slug}/manage/"
        members = dict(REMOVE.findall(organizer.read(manage)))
        organizer.submit(manage, {}, action=members["zoe"])
        swarm.wait(lambda: swarm.processes["zoe"].poll() is not None, 30, "the removed member's agent ends")
        assert "E324" in swarm.log("zoe")
        with pytest.raises(Refused, match="HTTP 404"):
            zoe.read(f"/runs/{swarm.slug}/")
        swarm.start_agent("zoe")
        swarm.wait(lambda: swarm.processes["zoe"].poll() is not None, 60, "it is not let in again")
        assert (swarm.processes["zoe"].returncode, swarm.last_code("zoe")) == (1, "E305")
        at = int(str(facts()["step"]))
        swarm.wait(lambda: int(str(facts()["step"])) >= at + 3, 60, "the others go on")

        # The organizer ends the run. A machine uploads the last state, and the site releases it.
        organizer.submit(f"/runs/{swarm.slug}/finish/", {})
        swarm.wait(lambda: facts()["state"] == "finished", 180, "the release is made")
        step = int(str(facts()["step"]))
        assert at + 3 <= step < LONG
        assert swarm.rows("select max(step) from runs_snapshot") == [(step,)]
        swarm.wait(lambda: swarm.processes["teo"].poll() is not None, 30, "the member's agent is let go")
        archive = swarm.rows("select archive from runs_release")[0][0]
        organizer.download(f"/api/v1/runs/{swarm.slug}/release/{archive}", tmp_path / "model.zip")
        card = organizer.read(f"/api/v1/runs/{swarm.slug}/release/README.md")
        assert f"| Steps | {step:,} |" in card
        assert "| Sharing confirmed by | amina, " in card
        with pytest.raises(Refused, match="HTTP 404"):
            zoe.download(f"/api/v1/runs/{swarm.slug}/release/{archive}", tmp_path / "stolen.zip")
        assert any("is ending the run" in line for line in swarm.timeline())
