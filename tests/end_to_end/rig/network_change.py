"""A laptop that loses its network and returns with another address. test_volunteer.py gives this program a namespace.

Run `python -m tests.end_to_end.rig.network_change FOLDER` alone in a network namespace in which it may create links.
The last line of the output is a JSON object of results.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from demo.recipes import python_text
from tests.end_to_end.rig.swarm import AWAY, BACK, Swarm

SITE, HOME, CAFE = "10.213.0.1", "10.213.0.2", "10.213.0.77"
APART = 2  # steps; one may have been almost done already
ALONE = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--net")


def networks_can_be_made() -> bool:
    """Return True if this machine can create namespaces. It cannot on macOS, without ip(8), or without the necessary
    rights.
    """
    if not all(shutil.which(program) for program in ("ip", "unshare", "nsenter")):
        return False
    return subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0


class Laptop:
    """A network namespace, connected by one cable to this process's namespace."""

    def __init__(self, pid: int) -> None:
        self.inside = ("nsenter", "--target", str(pid), "--net")
        ip("link", "set", "lo", "up")
        ip("link", "add", "site", "type", "veth", "peer", "name", "laptop", "netns", str(pid))
        ip("address", "add", f"{SITE}/24", "dev", "site")
        ip("link", "set", "site", "up")
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", f"{HOME}/24", "dev", "laptop")
        self.ip("link", "set", "laptop", "up")

    def ip(self, *words: str) -> None:
        subprocess.run([*self.inside, "ip", *words], check=True)

    def cut(self) -> None:
        self.ip("link", "set", "laptop", "down")

    def reach(self) -> None:
        self.ip("link", "set", "laptop", "up")

    def move(self) -> None:
        """Change the address, as moving to another network does. Open links then lead nowhere, and no error is
        reported.
        """
        self.ip("address", "del", f"{HOME}/24", "dev", "laptop")
        self.ip("address", "add", f"{CAFE}/24", "dev", "laptop")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def laptop() -> Iterator[Laptop]:
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 100000"], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()  # the namespace exists now
        yield Laptop(holder.pid)
    finally:
        holder.kill()
        holder.communicate()


def journey(swarm: Swarm, roaming: Laptop) -> dict[str, object]:
    """Return what the laptop's agent logged, and how many steps the run completed during each fault."""
    swarm.start_site(host=SITE)
    organizer = swarm.sign_up("organizer")
    swarm.open_endless_run(organizer, python_text()[:150_000])
    swarm.start_agent("desk", token=swarm.token_of(organizer))
    swarm.start_agent("laptop", token=swarm.token_of(organizer), inside=roaming.inside)
    swarm.wait(lambda: swarm.made("laptop") >= 2, 120, "the laptop takes part")
    went_on = [lose_network(swarm, roaming), change_network(swarm, roaming)]
    swarm.wait(lambda: said(swarm, AWAY) == said(swarm, BACK), 60, "it has said so")
    alive = swarm.processes["laptop"].poll() is None
    swarm.end_agents()  # ledger and log are compared while the run stands still
    mine, theirs = swarm.digests("laptop"), swarm.digests("desk")
    return {
        "went_on": went_on,
        "alive": alive,
        "away": said(swarm, AWAY),
        "back": said(swarm, BACK),
        "log": swarm.log("laptop"),
        "differ": [step for step in mine.keys() & theirs.keys() if mine[step] != theirs[step]],
        "books": books_agree(swarm),
    }


def books_agree(swarm: Swarm) -> bool:
    """Return True once the ledger and the log agree. The last step may still be in progress."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        ledger, committed = swarm.books()
        if ledger == committed > 0:
            return True
        time.sleep(1)
    return False


def lose_network(swarm: Swarm, roaming: Laptop) -> int:
    """Cut the network until both sides notice. Return how many steps the run completed without the laptop."""
    swarm.wait(lambda: len(swarm.online("trainer")) == 2, 30, "the site shows both")
    before, told = swarm.head(), said(swarm, AWAY)
    roaming.cut()
    swarm.wait(lambda: said(swarm, AWAY) > told, 120, "the laptop says so")
    swarm.wait(lambda: len(swarm.online("trainer")) == 1, 120, "the run has missed it")
    swarm.wait_for_step(before + APART)
    went_on = swarm.head() - before
    roaming.reach()
    comes_back(swarm)
    return went_on


def change_network(swarm: Swarm, roaming: Laptop) -> int:
    """Change the address, and return how many steps the run completed meanwhile. The laptop may be back before either
    side notices.
    """
    before = swarm.head()
    roaming.move()
    swarm.wait_for_step(before + APART)
    went_on = swarm.head() - before
    comes_back(swarm)
    return went_on


def comes_back(swarm: Swarm) -> None:
    head = swarm.head()
    swarm.wait(lambda: swarm.made("laptop") >= head + 2, 180, "the laptop is back")


def said(swarm: Swarm, words: str) -> int:
    return swarm.said("laptop", words)


def main(arguments: Sequence[str]) -> None:
    with laptop() as roaming, Swarm(Path(arguments[0])) as swarm:
        print(json.dumps(journey(swarm, roaming)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
