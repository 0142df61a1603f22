"""A site is restored from a backup that was made while it ran. Its relay and machines are ahead of the backup."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.processes import ROOT
from tests.end_to_end.rig.swarm import Swarm
from tests.end_to_end.test_survival import STEPS, begin, settled

pytestmark = pytest.mark.check
BACK_S = 30  # seconds from the start of the restored site to its next step


def manage(swarm: Swarm, *command: str) -> str:
    """Run a command of `manage.py` on the swarm's data. Return what it prints."""
    environment = {**os.environ, **swarm.environment, "MANYHANDS_DATA": str(swarm.data)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *command],
        env=environment,
        cwd=swarm.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def backed_up(swarm: Swarm, english: str) -> Path:
    """Make a backup while the run goes on, then let the run get four steps ahead of it. Stop the site."""
    begin(swarm, english, trainers=("a", "b"))
    swarm.wait_for_step(3)
    target = swarm.folder / "backups"
    manage(swarm, "backup", str(target))
    swarm.wait_for_step(swarm.head() + 4)
    swarm.end("site")
    (backup,) = target.iterdir()
    return backup


def back_at_work(swarm: Swarm, step: int) -> None:
    swarm.start_site()
    swarm.wait_for_step(step, BACK_S)


def whole(swarm: Swarm, *, has_lost_averages: bool = False, lost: int = 0, since: int = 1) -> None:
    """Require that a newcomer can join, that the run finishes with one state, that it is released and audited."""
    swarm.start_agent("c", token=swarm.token_of(swarm.sign_up("newcomer")))
    settled(swarm, ("a", "b", "c"), lost=lost, since=since)
    assert (swarm.released(swarm.folder / "model") / "model.safetensors").exists()
    swarm.end("site")
    shutil.rmtree(swarm.data / "relay")
    if has_lost_averages:  # those of the seconds before the site ended, which were neither archived nor restored
        assert "No fault found." in manage(swarm, "audit", swarm.slug)
        return
    said = manage(swarm, "audit", swarm.slug, "--replay")
    assert f"replayed from step 0 to step {STEPS}: the same state" in said, "the site alone has all that it needs"
    assert "No fault found." in said


def test_steps_after_the_backup_come_back_from_the_relay(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        backup = backed_up(swarm, english)
        (before,) = swarm.rows("select step from runs_head")
        manage(swarm, "restore", str(backup), "--replace")
        (restored,) = swarm.rows("select step from runs_head")
        assert restored[0] <= before[0] - 4
        back_at_work(swarm, before[0] + 1)
        said = [line for line in swarm.timeline() if "were read back from a relay's log" in line]
        assert said == [f"The database had lost steps {restored[0] + 1} to {before[0]}; {said[0].split('; ')[1]}"]
        assert "E142" not in swarm.log("a") + swarm.log("b"), "no replica had to load a snapshot"
        whole(swarm)


def test_steps_that_no_relay_has_are_told_and_made_again(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        backup = backed_up(swarm, english)
        (before,) = swarm.rows("select step from runs_head")
        shutil.rmtree(swarm.data)
        manage(swarm, "restore", str(backup))
        (restored,) = swarm.rows("select step from runs_head")
        assert restored[0] < before[0]
        back_at_work(swarm, restored[0] + 1)
        assert any("no relay has the steps in between" in line for line in swarm.timeline())
        swarm.wait(lambda: "E142" in swarm.log("a"), BACK_S, "machine a loads the site's model")
        whole(swarm)


def test_a_relay_that_is_older_than_the_database_catches_up(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        backup = backed_up(swarm, english)
        (before,) = swarm.rows("select step from runs_head")
        shutil.rmtree(swarm.data / "relay")
        shutil.copytree(backup / "data" / "relay", swarm.data / "relay")
        back_at_work(swarm, before[0] + 1)
        whole(swarm, has_lost_averages=True)


def test_lost_branch_keeps_its_credit(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        backup = backed_up(swarm, english)
        (before,) = swarm.rows("select step from runs_head")
        manage(swarm, "restore", str(backup), "--replace")
        (restored,) = swarm.rows("select step from runs_head")

        def told() -> list[str]:
            return [line for line in swarm.timeline() if "Their credit stays." in line]

        kept = tmp_path / "relay"
        shutil.move(swarm.data / "relay", kept)
        shutil.copytree(backup / "data" / "relay", swarm.data / "relay")
        back_at_work(swarm, restored[0] + 2)  # on another branch, because the relay is as old as the database
        swarm.end("site")
        shutil.rmtree(swarm.data / "relay")
        shutil.move(kept, swarm.data / "relay")
        swarm.start_site()
        swarm.wait(told, BACK_S, "the lost steps are credited")
        lost = swarm.rows("select step, samples from runs_logentry where kind = 'lost' order by step")
        assert [step for step, _ in lost] == list(range(restored[0] + 1, before[0] + 1))
        samples = sum(samples for _, samples in lost)
        assert f"{samples:,} samples by" in told()[0]
        swarm.wait_for_step(before[0] + 1)
        whole(swarm, has_lost_averages=True, lost=samples, since=before[0] + 1)
