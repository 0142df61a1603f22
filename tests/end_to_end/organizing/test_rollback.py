"""Three machines train, and the site is killed while the organizer rolls the run back. Afterwards, all replicas
agree."""

from pathlib import Path

from tests.end_to_end.rig.swarm import DIGEST, Swarm

NAMES = ("a", "b", "c")
EVERY = 12
ROLLED = "The run was rolled back to step"


def snapshot_at(swarm: Swarm, step: int) -> int:
    found: list[tuple[int]] = []
    verified = f"state = 'verified' and not is_undone and step = {step} and {swarm.of_run()}"

    def look() -> bool:
        found[:] = swarm.rows(f'select "index" from runs_snapshot where {verified}')
        return bool(found)

    swarm.wait(look, 600, f"the snapshot of step {step} is verified")
    return found[0][0]


def rollbacks(swarm: Swarm) -> list[int]:
    rows = swarm.rows(f"select \"index\" from runs_logentry where kind = 'rollback' and {swarm.of_run()}")
    return sorted(row[0] for row in rows)


def since(swarm: Swarm, name: str, times: int) -> dict[int, str]:
    """Return an agent's state digests since its last rollback, or none unless it has had exactly `times` rollbacks."""
    parts = swarm.log(name).split(ROLLED)
    return {int(step): digest for step, digest in DIGEST.findall(parts[-1])} if len(parts) == times + 1 else {}


def all_equal(swarm: Swarm, steps: int, times: int, *late: str) -> None:
    """Require that all agents reach this step and agree on the state at every step they share."""

    def made() -> bool:
        return all(max(since(swarm, name, times), default=0) >= steps for name in NAMES)

    swarm.wait(made, 300, f"all make step {steps} after rollback {times}")
    swarm.wait(lambda: all(swarm.made(name) >= steps for name in late), 60, "and who came late")
    digests = [since(swarm, name, times) for name in NAMES] + [swarm.digests(name) for name in late]
    common = [step for step in digests[0] if step <= steps]
    assert len(common) >= 2
    for step in common:
        assert len({of[step] for of in digests if step in of}) == 1, f"step {step}"
    assert all(steps in of for of in digests)


def test_a_run_goes_back_and_everybody_with_it(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        swarm.open_endless_run(organizer, english, trainers=3, snapshot_every=str(EVERY), target_batch="48")
        for name in NAMES:
            swarm.start_agent(name, token=swarm.token_of(organizer))
        first = snapshot_at(swarm, EVERY)
        swarm.wait_for_step(EVERY + 2)

        organizer.submit(f"/runs/{swarm.slug}/rollback/{first}/", {})
        swarm.kill("site")
        swarm.start_site()
        swarm.wait(lambda: len(rollbacks(swarm)) == 1, 120, "it goes back although the site was killed")
        (index,) = rollbacks(swarm)
        all_equal(swarm, EVERY + 3, 1)

        swarm.start_agent("late", token=swarm.token_of(organizer))
        swarm.wait(lambda: swarm.made("late") > 0, 300, "a newcomer makes a step")
        all_equal(swarm, swarm.head() + 1, 1, "late")

        assert rollbacks(swarm) == [index]
        ledger, committed = swarm.books()
        assert abs(ledger - committed) <= 2 * 48, "but for a step that was committed between the two looks"
        told = [line for line in swarm.timeline() if line.startswith(f"Rolled back to step {EVERY}")]
        assert len(told) == 1
        log = {row[0]: row[1] for row in swarm.rows(f'select "index", step from runs_logentry where {swarm.of_run()}')}
        assert log[index] == EVERY
        assert log[index + 1] == EVERY + 1
