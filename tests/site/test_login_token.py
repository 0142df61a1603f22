"""A token that comes in by another way than an argument, and that nobody else on the machine reads."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.site import login_token
from tests.agent.program import MANYHANDS, Answer, environment, http_site, manyhands, refusal
from tests.agent.scripted_site import TRAINER
from tests.protocol.identities import SITE_PUBLIC

SECRET = "mh_the-quiet-one"
KNOWN: Answer = (200, {"machine": TRAINER, "person": "ann", "site_key": SITE_PUBLIC.hex()})


def test_a_token_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {SECRET} \nmore")
    assert login_token.token_in(str(path)) == SECRET
    assert login_token.token_in("") == ""


def test_a_byte_order_mark_is_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET, encoding="utf-8-sig")
    assert login_token.token_in(str(tmp_path / "token")) == SECRET


NONE = [b"", b"\n", b"\nmh_second line", b"\xff\xfe", b"the-quiet-one", b"mh_", b"mh_\xc3\xbc", b"mh_a b", b"mh_a\x00"]


@pytest.mark.parametrize("content", NONE)
def test_a_file_without_one_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(Problem, match=r"E133: The file .*token holds no token \("):
        login_token.token_in(str(tmp_path / "token"))


def test_so_is_an_environment_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login_token.VARIABLE, f"\ufeff{SECRET}\n")
    assert login_token.token_of_environment() == SECRET
    monkeypatch.setenv(login_token.VARIABLE, f"“{SECRET}”")
    with pytest.raises(Problem, match=r"E133: MANYHANDS_TOKEN holds no token") as refused:
        login_token.token_of_environment()
    assert SECRET not in str(refused.value)


def test_what_was_taken_from_the_environment_is_not_there_for_children() -> None:
    environ = {login_token.VARIABLE: SECRET, "PATH": "/bin"}
    login_token.take_variable(environ)
    try:
        assert environ == {"PATH": "/bin"}
        assert login_token.token_of_environment() == SECRET
    finally:
        login_token.take_variable({})


def test_the_command_takes_it_away_before_it_starts_anything(tmp_path: Path) -> None:
    """A child of the command says what it inherits."""
    child = "import os, sys; sys.exit('MANYHANDS_TOKEN' in os.environ)"
    code = f"""
import subprocess, sys
from peer_agent import cli
cli.app = lambda: sys.exit(subprocess.run([sys.executable, "-c", {child!r}]).returncode)
cli.main()
"""
    own = environment(tmp_path) | {"MANYHANDS_TOKEN": SECRET}
    assert subprocess.run([sys.executable, "-c", code], env=own, timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("way", ["file", "input", "environment"])
def test_each_way_brings_the_token_to_the_site(tmp_path: Path, way: str) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    asked: list[str] = []

    def answer(path: str) -> Answer:
        asked.append(path)
        return KNOWN

    options = {"file": ["--token-file", str(tmp_path / "token")], "input": ["--token-file", "-"]}.get(way, [])
    more = {"MANYHANDS_TOKEN": SECRET} if way == "environment" else {}
    with http_site(answer) as url:
        done = subprocess.run(
            [MANYHANDS, "login", url, *options],
            env=environment(tmp_path) | more,
            input=f"{SECRET}\nmore that is not read",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, asked) == (0, ["/api/v1/machines"]), done.stderr


def test_nobody_reads_it_in_the_list_of_processes(tmp_path: Path) -> None:
    """A real relay while it runs, whose site has just taken its token and then lets it wait."""
    seen: list[list[str]] = []

    def answer(path: str) -> Answer:
        if path == "/api/v1/machines":
            return KNOWN
        me = psutil.Process()
        seen.extend(child.cmdline() for child in me.children(recursive=True))
        return 401, refusal("E204", minutes=9)

    with http_site(answer) as url:
        done = manyhands(tmp_path, "relay", url, MANYHANDS_TOKEN=SECRET)
    assert done.stderr.startswith("E204: ")
    assert any("relay" in line for line in seen)
    assert not any(SECRET in part for line in seen for part in line)
    assert SECRET not in done.stdout + done.stderr
