"""Processes are killed with SIGKILL at the worst moments. The run still finishes, and the replicas and the books
agree.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.end_to_end.rig.swarm import Swarm

REDUCER = 4  # index of the reducer in a record's span

STEPS = 12
# 1.3 million parameters in spans of a mebibyte: a reduce phase lasts long enough to be interrupted in the middle.
LARGE = {"width": "128", "layers": "4", "vocab": "4096", "target_batch": "24", "snapshot_every": "50"}


def begin(swarm: Swarm, english: str, *, trainers: tuple[str, ...], relays: tuple[str, ...] = (), **site: str) -> None:
    swarm.start_site(**site)
    organizer = swarm.sign_up("organizer")
    if relays:
        operator = swarm.operator()
        for name in relays:
            swarm.start_relay(name, swarm.token_of(operator))
    swarm.open_run(organizer, english, trainers=len(trainers), steps=STEPS, **LARGE)
    if relays:
        swarm.wait(lambda: len(swarm.online("relay")) == 1 + len(relays), 30, "all relays are there")
    for name in trainers:
        swarm.start_agent(name, token=swarm.token_of(organizer))


def in_mid_reduce(log: Path, after_step: int) -> Callable[[], bool]:
    """Return a predicate that is True while a relay stores a span, of step `after_step` or later, that is not in a
    record yet.
    """

    def now() -> bool:
        held = (path.name for path in (log / "tentative").glob("*.span"))
        return any(int(name.split("-")[0]) >= after_step for name in held)

    return now


def all_copied(source: Path, target: Path) -> bool:
    """Return True if the log `target` has all the averages that `source` has."""
    return {path.name for path in (source / "spans").iterdir()} <= {path.name for path in (target / "spans").iterdir()}


def hit(swarm: Swarm, victim: str, moment: Callable[[], bool]) -> None:
    """Suspend the victim once `moment` returns True, and check again. If it is still True, kill the victim; otherwise
    resume the victim and try again.
    """
    until, process = time.monotonic() + 180, swarm.processes[victim]
    while True:
        assert time.monotonic() < until, "the moment did not come"
        if moment():
            process.send_signal(signal.SIGSTOP)
            stands_still(process.pid)
            if moment():
                break
            process.send_signal(signal.SIGCONT)
        time.sleep(0.0005)
    swarm.kill(victim)


def stands_still(pid: int) -> None:
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.0005)


def settled(
    swarm: Swarm, survivors: tuple[str, ...], relay: Path | None = None, *, lost: int = 0, since: int = 1
) -> None:
    """Require that the run has finished, that the survivors' digests are equal at the steps they share, and that both
    books agree. `lost`: samples on a lost branch, which only the ledger has. `since`: the first step to compare.
    """
    swarm.wait_finished()
    steps = swarm.items("steps")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    digests = [swarm.digests(name) for name in survivors]
    for step in range(since, STEPS + 1):
        assert len({of[step] for of in digests if step in of}) == 1, f"step {step}"
    ledger, committed = swarm.books(relay)
    assert ledger - lost == committed == sum(step["samples"] for step in steps)


def test_a_trainer_is_killed_in_mid_reduce(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        begin(swarm, english, trainers=("a", "b", "c"))
        swarm.wait_for_step(2)
        hit(swarm, "c", in_mid_reduce(swarm.relay_log(), 3))
        settled(swarm, ("a", "b"))
        assert any("is away" in line for line in swarm.timeline())


def test_one_of_two_relays_is_killed_in_mid_reduce(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        begin(swarm, english, trainers=("a", "b", "c"), relays=("second",))
        swarm.wait_for_step(2)
        first, second = swarm.relay_log(), swarm.relay_log(tmp_path / "second" / "manyhands")
        is_reducing = in_mid_reduce(second, 3)
        hit(swarm, "second", lambda: is_reducing() and all_copied(second, first))
        settled(swarm, ("a", "b", "c"))
        reducers = {span[REDUCER] for record in swarm.records() for span in record["spans"]}
        assert len(reducers) == 2, "both relays reduced before"
        assert {span[REDUCER] for span in swarm.records()[-1]["spans"]} < reducers


def test_the_site_is_killed_between_commit_and_message(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        program = "tests/end_to_end/rig/dying_site.py"
        begin(swarm, english, trainers=("a", "b", "c"), program=program, DIE_AFTER_STEP="4")
        swarm.wait(lambda: swarm.processes["site"].poll() is not None, 180, "the site dies")
        assert swarm.rows("select step from runs_head") == [(4,)]
        # A machine may have been busy with step 3 while the others' answers committed step 4.
        swarm.wait(lambda: max(swarm.digests("a"), default=0) >= 3, 30, "a has made step 3")
        assert max(swarm.digests("a")) == 3, "the message was sent before the site died"
        swarm.start_site()
        settled(swarm, ("a", "b", "c"))
