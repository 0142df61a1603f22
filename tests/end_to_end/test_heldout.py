"""While a run trains, its snapshots are measured on text that nobody trains on, and who watches sees it come in."""

from pathlib import Path

from tests.end_to_end.rig.browser import LIVE, Reader, chromium
from tests.end_to_end.rig.swarm import Swarm

MEASURED = 'document.querySelector("[data-live=summary]").textContent.includes("On held-out text: ")'


def test_a_snapshot_is_measured_and_shown_without_a_reload(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm, chromium() as browser:
        swarm.start_site()
        amina = swarm.sign_up("Amina")
        swarm.open_run(amina, english, trainers=1, steps=5000)
        reader = Reader(browser)
        reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
        reader.page.wait_for_selector(LIVE, state="attached")
        reader.page.evaluate('window.mark = "still the same page"')
        swarm.start_agent("amina", token=swarm.token_of(amina))
        reader.wait_for(MEASURED)
        assert reader.page.evaluate("window.mark") == "still the same page"
        assert not reader.faults

        measured = [row for row in swarm.items("snapshots") if row["heldout_loss"] is not None]
        steps = {row["step"]: row["loss"] for row in swarm.items("steps")}
        assert measured
        assert all(row["step"] % 10 == 0 and row["step"] > 0 for row in measured)
        # It is the same language and a small model: what it makes of unseen text is near what it makes of the rest.
        assert all(abs(row["heldout_loss"] - steps[row["step"]]) < 1 for row in measured if row["step"] in steps)
        assert 'class="held"' in amina.read(f"/runs/{swarm.slug}/")
