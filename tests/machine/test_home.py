"""Only one agent at a time works in a home. These tests cover the lock between processes and the `forget` command."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peer_agent.machine import home as home_module
from peer_agent.machine.home import Home, KnownSite
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from tests.agent.program import MANYHANDS, environment
from tests.agent.scripted_site import TRAINER
from tests.averaging.rounds import RUN
from tests.protocol.identities import SITE_PUBLIC

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def another(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from peer_agent.machine.home import Home
        with Home(Path(sys.argv[1])).locked():
            print("locked", flush=True)
            time.sleep(600)
    """)
    command = [sys.executable, "-c", program, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


def test_running_agent_is_named_and_its_lock_ends_with_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with another(tmp_path) as process:
        assert home.holder() == process.pid
        with pytest.raises(Problem, match=rf"E102: Another agent \(process {process.pid}\)"), home.locked():
            pass
        assert home.holder() == process.pid, "who was refused does not say that it works here"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert home.holder() is None
    with home.locked():
        assert home.holder() == os.getpid()
    assert home.holder() is None


def test_old_agents_lock_content_is_not_taken_for_a_process(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.locked():
        (tmp_path / "agent.lock").write_text("4711")
        assert home.holder() == 0
        with pytest.raises(Problem, match=r"E102: Another agent \(process unknown\)"), home.locked():
            pass


def test_lock_text_stays_out_of_the_byte_that_windows_locks(tmp_path: Path) -> None:
    with Home(tmp_path).locked():
        assert (tmp_path / "agent.lock").read_bytes()[1:].split() == [str(os.getpid()).encode()]


def test_a_disk_without_locks_is_e106(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(home_module, "try_lock", refuse)
    with pytest.raises(Problem, match=r"E106.*No locks available"), Home(tmp_path).locked():
        pass


def test_a_home_that_cannot_be_written_is_e106(tmp_path: Path) -> None:
    (tmp_path / "agent.lock").mkdir()
    with pytest.raises(Problem, match="E106"):
        Home(tmp_path).holder()
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem, match="E106"):
        Home(tmp_path / "file" / "home")


ONE, OTHER = "https://one.example", "https://other.example"


def known(folder: Path, *urls: str) -> Home:
    home = Home(folder)
    home.key()
    for url in urls:
        home.remember(KnownSite(url, TRAINER, "ann", SITE_PUBLIC.hex()))
    (home.cache / "shards").mkdir(parents=True)
    (home.cache / "shards" / "a").write_bytes(bytes(1000))
    home.write("status.json", b"{}")
    home.is_first_credit(RUN)
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


def test_the_first_credit_of_a_run_is_the_first_for_later_processes_too(tmp_path: Path) -> None:
    other = RunId("0c" * 16)
    assert [Home(tmp_path).is_first_credit(run) for run in (RUN, RUN, other, RUN, other)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    (tmp_path / "credited.json").write_bytes(b"{")
    assert Home(tmp_path).is_first_credit(RUN)


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
