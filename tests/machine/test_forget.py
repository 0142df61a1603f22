"""`manyhands forget`: this site's identity and files, and nothing that another site needs."""

import json
import subprocess
from pathlib import Path

from peer_agent.machine.home import Home, KnownSite
from tests.agent.program import MANYHANDS, environment
from tests.agent.scripted_site import TRAINER
from tests.protocol.identities import SITE_PUBLIC

ONE, OTHER = "https://one.example", "https://other.example"


def known(folder: Path, *urls: str) -> Home:
    home = Home(folder)
    home.key()
    for url in urls:
        home.remember(KnownSite(url, TRAINER, "ann", SITE_PUBLIC.hex()))
    (home.cache / "shards").mkdir(parents=True)
    (home.cache / "shards" / "a").write_bytes(bytes(1000))
    home.write("status.json", b"{}")
    return home


def forget(folder: Path, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MANYHANDS, "forget", *arguments],
        env=environment(folder),
        input=answer,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_last_site_takes_everything_with_it(tmp_path: Path) -> None:
    known(tmp_path, ONE)
    done = forget(tmp_path, f"{ONE}/runs/a/", "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert (facts["site"], facts["person"]) == (ONE, "ann")
    assert facts["freed_bytes"] >= 1000
    assert {path.name for path in tmp_path.iterdir()} == {"agent.lock", "sites.json"}


def test_another_site_keeps_what_it_needs(tmp_path: Path) -> None:
    home = known(tmp_path, ONE, OTHER)
    key = (tmp_path / "machine.key").read_bytes()
    assert forget(tmp_path, ONE, answer="y\n").returncode == 0
    assert set(home.sites()) == {OTHER}
    assert (tmp_path / "machine.key").read_bytes() == key
    assert not home.cache.exists()


def test_it_asks_first(tmp_path: Path) -> None:
    home = known(tmp_path, ONE)
    for answer in ("n\n", ""):
        done = forget(tmp_path, ONE, answer=answer)
        assert (done.returncode, "works for ann" in done.stdout) == (1, True)
        assert "Traceback" not in done.stderr
    assert set(home.sites()) == {ONE}


def test_a_site_that_is_not_known_and_one_at_work(tmp_path: Path) -> None:
    home = known(tmp_path, ONE)
    assert forget(tmp_path, OTHER, "--yes").stderr.startswith("E118: ")
    with home.locked():
        assert forget(tmp_path, ONE, "--yes").stderr.startswith("E102: ")
