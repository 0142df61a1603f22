"""The agent's console script as users run it. An error prints one numbered sentence and exits with status 1; signals
end it quickly.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from peer_agent import cli
from peer_agent.machine import hardware
from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.wire import encode
from tests.agent.program import (
    MANYHANDS,
    Answer,
    complaint,
    credential,
    environment,
    http_site,
    known_at,
    manyhands,
    refusal,
)
from tests.agent.scripted_site import PATIENCE_S
from tests.protocol.identities import RUN

# A program that runs the command and waits longer for its links than the command itself would.
PATIENT = """
from peer_agent import cli
from peer_agent.network import link
link.dial.__kwdefaults__["timeout_s"] = 3600.0
cli.main()
"""


# --- before any request -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["join", "site.example/runs/a/"], "E112"),
        (["join", "http://127.0.0.1:9/"], "E305"),
        (["join", "http://[bad/runs/a/"], "E104"),
        (["join", "http://127.0.0.1:9/runs/a/"], "E104"),
        (["login", "http://127.0.0.1:9"], "E104"),
        (["login", "http://127.0.0.1:9", "--token", "x"], "E132"),
        (["join", "http://127.0.0.1:9/runs/a/", "--token", "x"], "E132"),
        (["relay", "http://127.0.0.1:9", "--token=x"], "E132"),
        (["login", "http://127.0.0.1:9", "--token-file", "/nowhere"], "E133"),
        (["login", "http://127.0.0.1:9", "--token-file", "/dev/null"], "E133"),
        (["login", "http://8.8.8.8"], "E105"),
        (["relay", "http://127.0.0.1:9", "--host", "0.0.0.0"], "E112"),
    ],
)
def test_what_is_wrong_with_the_command(tmp_path: Path, arguments: list[str], code: str) -> None:
    assert complaint(tmp_path, *arguments).startswith(f"{code}: ")


def test_a_second_agent_in_one_home(tmp_path: Path) -> None:
    with Home(tmp_path).locked():
        said = complaint(tmp_path, "login", "http://127.0.0.1:9")
    assert said.startswith(f"E102: Another agent (process {os.getpid()})")


@pytest.mark.parametrize("name", ["machine.key", "sites.json"])
def test_files_of_its_own_that_are_damaged(tmp_path: Path, name: str) -> None:
    known_at(tmp_path, "http://127.0.0.1:9")
    (tmp_path / name).write_bytes(b"\xff{}")
    assert complaint(tmp_path, "join", "http://127.0.0.1:9/runs/a/").startswith("E113: ")


def test_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hardware, "NEEDED", ("no_such_package",))
    monkeypatch.setattr(sys, "argv", ["manyhands", "join", "http://127.0.0.1:9/runs/a/"])
    monkeypatch.setenv("MANYHANDS_HOME", str(tmp_path))
    assert cli.status_of(cli.app) == 1
    said, line = capsys.readouterr().err.strip().split("\n")
    assert said.startswith("E103: ")
    with zipfile.ZipFile(tmp_path / "no_such_package-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("no_such_package.py", "")
        for name, content in (("METADATA", "Name: no_such_package\nVersion: 1"), ("WHEEL", ""), ("RECORD", "")):
            version = f"{'Metadata' if name == 'METADATA' else 'Wheel'}-Version: 1.0\n"
            wheel.writestr(f"no_such_package-1.dist-info/{name}", (version if name != "RECORD" else "") + content)
    own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_TARGET": str(tmp_path / "installed")}
    subprocess.run(shlex.split(line), env=environment(tmp_path) | own, capture_output=True, check=True)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    assert hardware.of_packages() is None, "the line that was shown installs them"


def limits_asked_for(work: str, words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> Limits:
    known: list[Limits] = []

    async def join(_: str, __: object, limits: Limits, *___: object, **____: object) -> None:
        known.append(limits)

    monkeypatch.setenv("MANYHANDS_HOME", str(home))
    monkeypatch.setattr(work, join)
    monkeypatch.setattr("peer_agent.machine.limits.apply_limits", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["manyhands", "join", "http://127.0.0.1:9/runs/a/", *words])
    assert cli.status_of(cli.app) == 0
    (limits,) = known
    return limits


@pytest.mark.parametrize(("words", "percent"), [([], 20), (["--reserve", "0"], 0), (["--reserve", "90"], 90)])
def test_how_much_of_the_uplink_the_household_keeps(
    words: list[str], percent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = limits_asked_for("peer_agent.cli._average", ["--auxiliary", *words], tmp_path, monkeypatch)
    assert limits.reserve_percent == percent


@pytest.mark.parametrize("words", [[], ["--compile"]])
def test_layers_are_compiled_where_that_is_asked_for(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits_asked_for("peer_agent.trainer.joining.join_run", words, tmp_path, monkeypatch).compiles is bool(words)


@pytest.mark.parametrize("words", [["--compile"], ["--listen"], ["--publish", "a/b"]])
def test_auxiliary_refuses_options_that_are_for_trainers(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["manyhands", "join", "http://127.0.0.1:9/runs/a/", "--auxiliary", *words])
    assert cli.status_of(cli.app) == 2
    assert words[0] in capsys.readouterr().err


def test_an_auxiliary_needs_no_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hardware, "NEEDED", ("no_such_package",))
    monkeypatch.setattr(sys, "argv", ["manyhands", "join", "http://127.0.0.1:9/runs/a/", "--auxiliary"])
    monkeypatch.setenv("MANYHANDS_HOME", str(tmp_path))
    assert cli.status_of(cli.app) == 1
    assert capsys.readouterr().err.startswith("E104: "), "it goes on to ask the site"


# --- what the site says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((401, refusal("E215")), "E215"),
        ((404, "<html>not here</html>"), "E110"),
        ((200, "<html>a hotel's page</html>"), "E110"),
        ((200, {"hello": "world"}), "E110"),
    ],
)
def test_logging_in_with_a_wrong_token_or_at_no_site(tmp_path: Path, answer: Answer, code: str) -> None:
    with http_site(lambda _: answer) as url:
        (tmp_path / "token").write_text("mh_x\n")
        assert complaint(tmp_path, "login", url, "--token-file", str(tmp_path / "token")).startswith(f"{code}: ")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((404, refusal("E305", address="a")), "E305"),
        ((409, refusal("E306")), "E306"),
        ((409, refusal("E308")), "E308"),
        ((401, refusal("E204", minutes=60)), "E204"),
        ((403, refusal("E214")), "E214"),
        ((401, refusal("E216")), "E216"),
        ((404, "<html>not here</html>"), "E110"),
        ((200, {}), "E110"),
        ((200, {"credential": "", "site_key": "00" * 32, "control": "", "run": RUN}), "E217"),
    ],
)
def test_a_run_that_cannot_be_joined(tmp_path: Path, answer: Answer, code: str) -> None:
    with http_site(lambda _: answer) as url:
        known_at(tmp_path, url)
        assert complaint(tmp_path, "join", f"{url}/runs/a/").startswith(f"{code}: ")


async def test_a_site_of_another_protocol(tmp_path: Path) -> None:
    async def challenge(socket: ServerConnection) -> None:
        newer = m.Challenge(protocol=m.PROTOCOL + 1, server="site", nonce=bytes(32), time=time.time())
        await socket.send(encode(newer))
        await socket.wait_closed()

    async with serve(challenge, "127.0.0.1", 0) as server:
        control = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
        with http_site(lambda _: (200, credential(tmp_path, control, Role.RELAY))) as url:
            known_at(tmp_path, url)
            said = await asyncio.to_thread(complaint, tmp_path, "relay", url)
    assert said.startswith("E205: ")


@pytest.mark.parametrize(("protocol", "ends"), [(m.PROTOCOL, "E306"), (m.PROTOCOL + 1, "E205")])
def test_newer_agent_is_announced_and_new_protocol_ends_join(tmp_path: Path, protocol: int, ends: str) -> None:
    offer = {"version": "9.0.0", "protocol": protocol, "upgrade_pip": "pip install it", "upgrade_uv": None}
    answers = {"/api/v1/agent": (200, offer)}
    with http_site(lambda path: answers.get(path, (409, refusal("E306")))) as url:
        known_at(tmp_path, url)
        done = manyhands(tmp_path, "join", f"{url}/runs/a/")
    assert (done.returncode, done.stderr[:6]) == (1, f"{ends}: ")
    assert (done.stdout if ends == "E306" else done.stderr).endswith("-m pip install it\n")
    assert ("The site offers agent 9.0.0" in done.stdout) == (ends == "E306")


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", "E401"), ("192.0.2.1", "E407")])
def test_a_relay_that_cannot_listen(tmp_path: Path, host: str, code: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, http_site(lambda _: (200, issued)) as url:
        issued = credential(tmp_path, "ws://127.0.0.1:9/", Role.RELAY)
        known_at(tmp_path, url)
        port = str(taken.getsockname()[1])
        assert complaint(tmp_path, "relay", url, "--host", host, "--port", port).startswith(f"{code}: ")


def test_several_errors_at_once_are_a_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        full = OSError(28, "No space left on device", "/a/file")
        raise ExceptionGroup("", [Problem.of("E214"), ExceptionGroup("", [full])])

    assert cli.status_of(fail) == 1
    assert [line[:5] for line in capsys.readouterr().err.splitlines()] == ["E214:", "E106:"]


def test_what_has_no_number_is_shown_whole() -> None:
    def fail() -> None:
        raise ExceptionGroup("", [Problem.of("E214"), ValueError("a bug")])

    with pytest.raises(ExceptionGroup):
        cli.status_of(fail)


# --- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["login", "join"])
def test_signal_ends_a_command_at_once_while_the_site_is_frozen(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        frozen.settimeout(PATIENCE_S)
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        known_at(tmp_path, url)
        arguments = [url] if command == "login" else [f"{url}/runs/a/"]
        process = subprocess.Popen(
            [MANYHANDS, command, *arguments],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with frozen.accept()[0]:  # the command waits for an answer to this request
            try:
                process.send_signal(number)
                said, _ = process.communicate(timeout=AT_ONCE_S)
            finally:
                process.kill()
    assert (process.returncode, said) == (0, b"")


AT_ONCE_S = 20.0  # less than the command's own timeout for an answer
LOADED_S = 600.0  # torch is loaded at the lowest priority, possibly while another program uses every core


async def test_it_leaves_at_once_though_its_control_link_takes_nothing(tmp_path: Path) -> None:
    """The site accepts the control link and then never answers. SIGINT must still end the agent at once."""
    linked = asyncio.Event()

    async def silent(socket: ServerConnection) -> None:
        linked.set()
        await socket.wait_closed()

    async with serve(silent, "127.0.0.1", 0, close_timeout=0.1) as server:
        control = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
        with http_site(lambda _: (200, credential(tmp_path, control))) as url:
            known_at(tmp_path, url)
            command = [sys.executable, "-c", PATIENT, "join", f"{url}/runs/a/"]
            process = await asyncio.create_subprocess_exec(
                *command, env=environment(tmp_path), stderr=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(LOADED_S):
                    await linked.wait()
                process.send_signal(signal.SIGINT)
                async with asyncio.timeout(AT_ONCE_S):
                    _, said = await process.communicate()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()
    assert (process.returncode, b"Traceback" in said) == (0, False)
