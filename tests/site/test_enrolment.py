"""A machine without a token: its code, how long it waits for approval, and every answer that a site can give."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from peer_agent.display.device_code import code_in_words
from peer_agent.machine.hardware import system_in_words
from peer_agent.machine.home import Home
from peer_agent.network.site import Answered
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.site import login_token
from peer_agent.site.credential import RunAccess
from peer_agent.site.enrolment import Code, Enrolment, access_for, get_approved
from tests.agent.program import MANYHANDS, Answer, environment, http_site, known_at, manyhands, refusal
from tests.agent.scripted_site import TRAINER
from tests.protocol.identities import SITE_PUBLIC
from tests.site.device_site import DECLINED, EXPIRED, NOT_YET, STRANGE, TOO_FAST, DeviceSite, device_site

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
    with pytest.raises(Problem, match=r"E133: The file .*token contains no token \("):
        login_token.token_in(str(tmp_path / "token"))


def test_so_is_an_environment_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login_token.VARIABLE, f"\ufeff{SECRET}\n")
    assert login_token.token_of_environment() == SECRET
    monkeypatch.setenv(login_token.VARIABLE, f"“{SECRET}”")
    with pytest.raises(Problem, match=r"E133: MANYHANDS_TOKEN contains no token") as refused:
        login_token.token_of_environment()
    assert SECRET not in str(refused.value)


def test_children_do_not_see_the_token_of_the_environment() -> None:
    environ = {login_token.VARIABLE: SECRET, "PATH": "/bin"}
    login_token.take_variable(environ)
    try:
        assert environ == {"PATH": "/bin"}
        assert login_token.token_of_environment() == SECRET
    finally:
        login_token.take_variable({})


def test_the_command_takes_it_away_before_it_starts_anything(tmp_path: Path) -> None:
    """The command removes the token from its own environment, as a child process confirms."""
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


@pytest.fixture
def site() -> Iterator[DeviceSite]:
    with device_site() as own:
        yield own


class Clock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now += pause_s

    def monotonic(self) -> float:
        return self.now


async def approve(site: DeviceSite, folder: Path, clock: Clock | None = None, run: str = "") -> list[Code]:
    """Wait for approval, and return the codes shown in the meantime."""
    shown: list[Code] = []
    clock = clock or Clock()
    url = f"{site.url}/runs/a/"
    await get_approved(Home(folder), url, run=run, show=shown.append, sleep=clock.sleep, monotonic=clock.monotonic)
    return shown


async def test_a_person_says_yes_after_a_while(tmp_path: Path, site: DeviceSite) -> None:
    site.polls, site.interval, clock = [NOT_YET, NOT_YET, TOO_FAST, NOT_YET], 2, Clock()
    (code,) = await approve(site, tmp_path, clock, run="a")
    assert code.user_code == "BCDF-GHJK"
    assert clock.pauses == [2, 2, 7, 2]
    known = Home(tmp_path).sites()[site.url]
    assert (known.machine, known.person, known.site_key) == (TRAINER, "ann", SITE_PUBLIC.hex())
    (asked,) = site.asked
    assert (asked["run"], asked["public_key"]) == ("a", public_bytes(Home(tmp_path).key()).hex())
    assert asked["system"] == system_in_words()


async def test_a_site_that_is_away_for_a_while_is_waited_for(tmp_path: Path, site: DeviceSite) -> None:
    site.polls = [STRANGE, NOT_YET, STRANGE]
    assert len(await approve(site, tmp_path)) == 1


@pytest.mark.parametrize(
    ("answers", "code"), [([NOT_YET, DECLINED], "E221"), ([EXPIRED], "E222"), ([STRANGE] * 6, "E110")]
)
async def test_a_person_says_no_or_the_code_is_none(
    tmp_path: Path, site: DeviceSite, answers: list[Answer], code: str
) -> None:
    site.polls = list(answers)
    with pytest.raises(Problem) as raised:
        await approve(site, tmp_path)
    assert raised.value.fault.code == code
    assert Home(tmp_path).sites() == {}


async def test_nobody_answers(tmp_path: Path, site: DeviceSite) -> None:
    site.polls, site.expires_in, site.interval = [NOT_YET] * 100, 60, 2
    with pytest.raises(Problem, match="E115: Nobody approved this machine within 1 minutes"):
        await approve(site, tmp_path)
    assert site.polled == 30


@pytest.mark.parametrize("user_code", ["", "\x1b[2J", "x" * 21, "BCDF GHJK"])
async def test_a_code_that_is_none_is_not_shown(tmp_path: Path, site: DeviceSite, user_code: str) -> None:
    site.user_code = user_code
    with pytest.raises(Problem, match="E110"):
        await approve(site, tmp_path)


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def test_the_code_is_large_on_a_terminal_and_fits_it() -> None:
    address = "https://a.example/device/"
    code = Code("x", "BCDF-GHJK", address, f"{address}?code=BCDF-GHJK", 900, 2)
    lines = code_in_words(code, Terminal(), "To let it, open")
    assert max(map(len, lines)) < 80
    assert "    ####    ####  ####   #####          ####  #   #    ###  #   #" in lines
    assert "    BCDF-GHJK" in lines
    plain = code_in_words(code, io.StringIO(), "To let it, open")
    assert not any("#" in line for line in plain)
    assert f"    {address}?code=BCDF-GHJK" in plain


async def test_run_in_preparation_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site asks for a wait, at most a minute of which is believed. A draft may stay one, so it is refused."""
    fault, said, clock = Fault.of("E308"), list[str](), Clock()
    refusals: list[Problem] = [Answered(fault, 20.0), Answered(fault, 1e9)]

    async def renew(_: RunAccess) -> None:
        if refusals:
            raise refusals.pop(0)

    monkeypatch.setattr(RunAccess, "renew", renew)
    known_at(tmp_path, "http://a")
    enrolment = Enrolment(show=lambda _: None, say=said.append, run="a")
    access = await access_for(Home(tmp_path), "http://a/runs/a/", enrolment, sleep=clock.sleep)
    assert (access.slug, clock.pauses) == ("a", [20.0, 60.0])
    assert said == ["This run is being prepared. This machine joins when it opens."]
    refusals.append(Answered(fault))
    with pytest.raises(Problem, match="E308"):
        await access_for(Home(tmp_path), "http://a/runs/a/", enrolment, sleep=clock.sleep)


# --- the commands ------------------------------------------------------------------------------------------------


def test_login_shows_the_code_waits_and_goes_on(tmp_path: Path, site: DeviceSite) -> None:
    site.polls = [NOT_YET]
    done = manyhands(tmp_path, "login", site.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "    BCDF-GHJK\n" in done.stdout
    assert done.stdout.endswith(f"This machine now works for ann at {site.url}.\n")


def test_join_goes_on_by_itself_and_knows_the_site_the_next_time(tmp_path: Path, site: DeviceSite) -> None:
    site.more = lambda path: (409, refusal("E306")) if path.endswith("/credential") else None
    first = manyhands(tmp_path, "join", f"{site.url}/runs/a/")
    assert "    BCDF-GHJK\n" in first.stdout
    second = manyhands(tmp_path, "join", f"{site.url}/runs/a/")
    assert (first.returncode, second.returncode) == (1, 1)
    assert first.stderr == second.stderr == f"{refusal('E306')['code']}: {refusal('E306')['text']}\n"
    assert second.stdout == ""
    assert [asked["run"] for asked in site.asked] == ["a"]


def test_revoked_machine_says_where_to_undo_that(tmp_path: Path, site: DeviceSite) -> None:
    """A second request would fail, because the site does not approve this key again."""
    assert manyhands(tmp_path, "login", site.url).returncode == 0
    site.more = lambda path: (403, refusal("E214")) if path.endswith("/credential") else None
    done = manyhands(tmp_path, "join", f"{site.url}/runs/a/")
    assert done.stderr.startswith("E214: ")
    assert "machines page" in done.stderr
    assert len(site.asked) == 1


def test_a_machine_that_was_forgotten_asks_again(tmp_path: Path, site: DeviceSite) -> None:
    key = Home(tmp_path).key()
    assert manyhands(tmp_path, "login", site.url).returncode == 0
    issued = [(403, refusal("E101", site=site.url)), (409, refusal("E306"))]
    site.more = lambda path: issued.pop(0) if path.endswith("/credential") else None
    done = manyhands(tmp_path, "join", f"{site.url}/runs/a/")
    assert "It can be approved again now." in done.stdout
    assert "    BCDF-GHJK\n" in done.stdout
    assert done.stderr.startswith("E306: ")
    assert [asked["public_key"] for asked in site.asked] == [public_bytes(key).hex()] * 2


def test_a_relay_is_approved_in_the_same_way(tmp_path: Path, site: DeviceSite) -> None:
    site.more = lambda path: (401, refusal("E204", minutes=9)) if path.endswith("/relays/credential") else None
    done = manyhands(tmp_path, "relay", site.url)
    assert "    BCDF-GHJK\n" in done.stdout
    assert done.stdout.startswith("To approve this machine as a relay, an operator of the site opens\n")
    assert done.stderr.startswith("E204: ")
    assert [asked["kind"] for asked in site.asked] == ["relay"]


def test_a_machine_that_is_no_relay_yet_asks_to_become_one(tmp_path: Path, site: DeviceSite) -> None:
    assert manyhands(tmp_path, "login", site.url).returncode == 0
    answers = [(403, refusal("E213")), (401, refusal("E204", minutes=9))]
    site.more = lambda path: answers.pop(0) if path.endswith("/relays/credential") else None
    assert manyhands(tmp_path, "relay", site.url).stderr.startswith("E204: ")
    assert [asked["kind"] for asked in site.asked] == ["agent", "relay"]


def test_a_servers_token_is_spent_once_and_not_asked_for_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(path: str) -> Answer:
        asked.append(path)
        known = {"machine": TRAINER, "person": "ann", "site_key": SITE_PUBLIC.hex()}
        return (200, known) if path == "/api/v1/machines" else (401, refusal("E204", minutes=9))

    with http_site(answer) as url:
        ends = [manyhands(tmp_path, "relay", url, MANYHANDS_TOKEN="mh_x").stderr[:6] for _ in range(2)]
    assert ends == ["E204: "] * 2
    assert asked == ["/api/v1/machines", *["/api/v1/relays/credential"] * 2]
