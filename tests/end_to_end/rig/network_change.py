"""A laptop that loses its network and returns under another address; test_volunteer.py gives it a network of its own.

`python -m tests.end_to_end.rig.network_change FOLDER` wants to be alone in a network namespace, where it may make
links. It prints what came of it as one JSON object on its last line.
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

from demo.corpus import python_text
from tests.end_to_end.rig.swarm import Swarm

SITE, HOME, CAFE = "10.213.0.1", "10.213.0.2", "10.213.0.77"
CUT_S = 40.0  # longer than a link waits for a pong, a trouble to be told, and the run for a silent trainer
AWAY, BACK = "Site not reachable (E134)", "Solved: Site not reachable."
ALONE = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--net")


def networks_can_be_made() -> bool:
    """Not on macOS, without ip(8), or where the system keeps namespaces from all but root."""
    if not all(shutil.which(program) for program in ("ip", "unshare", "nsenter")):
        return False
    return subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0


class Laptop:
    """A namespace with one cable to ours."""

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
        """ip(8), in the laptop."""
        subprocess.run([*self.inside, "ip", *words], check=True)

    def cut(self) -> None:
        """Out of reach of the Wi-Fi."""
        self.ip("link", "set", "laptop", "down")

    def reach(self) -> None:
        """In reach again."""
        self.ip("link", "set", "laptop", "up")

    def move(self) -> None:
        """Another network: links that are open lead nowhere, and nobody says so."""
        self.ip("address", "del", f"{HOME}/24", "dev", "laptop")
        self.ip("address", "add", f"{CAFE}/24", "dev", "laptop")


def ip(*words: str) -> None:
    """ip(8), where the site is."""
    subprocess.run(["ip", *words], check=True)


@contextmanager
def laptop() -> Iterator[Laptop]:
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 100000"], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()  # it is there
        yield Laptop(holder.pid)
    finally:
        holder.kill()
        holder.communicate()


def journey(swarm: Swarm, roaming: Laptop) -> dict[str, object]:
    """What the agent of the laptop said, and which steps it made after each mishap."""
    swarm.start_site(host=SITE)
    organizer = swarm.sign_up("organizer")
    swarm.open_run(organizer, python_text()[:150_000], trainers=1, steps=100_000)
    swarm.start_agent("desk", token=swarm.token_of(organizer))
    swarm.start_agent("laptop", token=swarm.token_of(organizer), inside=roaming.inside)
    swarm.wait(lambda: made(swarm) >= 2, 120, "the laptop takes part")
    went_on = []
    for leave in (roaming.cut, roaming.move):
        before = head(swarm)
        leave()
        time.sleep(CUT_S)
        went_on.append(head(swarm) - before)
        roaming.reach()
        back = head(swarm)
        swarm.wait(lambda back=back: made(swarm) >= back + 2, 180, "the laptop is back")  # type: ignore[misc]
    swarm.wait(lambda: said(swarm, AWAY) == said(swarm, BACK), 60, "it has said so")
    ledger, committed = swarm.books()
    mine, theirs = swarm.digests("laptop"), swarm.digests("desk")
    return {
        "went_on": went_on,
        "alive": swarm.processes["laptop"].poll() is None,
        "away": said(swarm, AWAY),
        "back": said(swarm, BACK),
        "log": swarm.log("laptop"),
        "differ": [step for step in mine.keys() & theirs.keys() if mine[step] != theirs[step]],
        "books": ledger == committed > 0,
    }


def made(swarm: Swarm) -> int:
    return max(swarm.digests("laptop"), default=0)


def head(swarm: Swarm) -> int:
    return int(swarm.facts()["step"])


def said(swarm: Swarm, words: str) -> int:
    return swarm.log("laptop").count(words)


def main(arguments: Sequence[str]) -> None:
    """In the folder that is named."""
    with laptop() as roaming, Swarm(Path(arguments[0])) as swarm:
        print(json.dumps(journey(swarm, roaming)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
