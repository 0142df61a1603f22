"""The `manyhands` command. It exits with status 0 on success, and with 1 after a numbered error."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peer_agent.machine.language import ENGLISH, SanitizingFormatter, is_english, sanitize, speak
from peer_agent.machine.language import gettext as _
from peer_agent.machine.limits import DISK_GB, GIGABYTE, RESERVE_PERCENT
from peer_agent.network.addresses import ANYWHERE
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages.to_site import MOST_RESERVED
from peer_agent.site.login_token import refuse_argument, take_variable, token_in

if TYPE_CHECKING:
    from peer_agent.display.lines import View
    from peer_agent.machine.home import Home
    from peer_agent.machine.leave_request import LeaveRequest
    from peer_agent.machine.limits import Limits
    from peer_agent.relay.place import Place
    from peer_agent.site.enrolment import Enrolment

# Each command imports its own modules, so that `--help` is fast.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Rich's frames break in terminals that measure the width of text differently.
    rich_markup_mode="rich" if is_english() else None,
    help=_("Train one model together."),
)

TokenFile = Annotated[
    str,
    typer.Option(
        help=_(
            "File with a one-time token from the site's machines page (- for standard input), to skip approval "
            "in a browser. MANYHANDS_TOKEN works too."
        )
    ),
]
Token = Annotated[str, typer.Option(hidden=True, callback=refuse_argument)]
Attached = Annotated[bool, typer.Option(hidden=True, help=_("Leave when standard input ends."))]
Json = Annotated[bool, typer.Option("--json", help=_("Machine-readable output, as JSON."))]
Auxiliary = Annotated[
    bool,
    typer.Option(
        "--auxiliary",
        help=_("Train nothing: average for the others, who connect to this machine. Needs an open port but no GPU."),
    ),
]
Listen = Annotated[
    bool,
    typer.Option(
        "--listen",
        help=_(
            "Train, and also average for the others, who connect to this machine: faster steps. Needs an open port."
        ),
    ),
]
Reserve = Annotated[
    int,
    typer.Option(min=0, max=MOST_RESERVED, help=_("Percent of upload bandwidth to leave free.")),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help=_("Compile the model's layers, which may be faster. Needs a C++ compiler, and Triton on a GPU."),
    ),
]
Disk = Annotated[int, typer.Option(min=1, help=_("Disk cache in GB (least recently used is deleted first)."))]
Host = Annotated[str, typer.Option(help=_("With --auxiliary or --listen: address to listen on."))]
Port = Annotated[int, typer.Option(min=0, max=65535, help=_("With these: port to listen on; 0: any free one."))]
Advertise = Annotated[
    int, typer.Option(min=0, max=65535, help=_("With these: external port, if your router forwards a different one."))
]
LEAVE_S = 15.0  # how long an agent may take to exit once it has finished its step


@app.command(help=_("Connect this machine to SITE; without a token, you approve it in your browser."))
def login(site: str, *, token_file: TokenFile = "", token: Token = "") -> None:  # noqa: ARG001 (refused if given)
    from peer_agent.machine.leave_request import LeaveRequest

    secret, home = token_in(token_file), _home()
    with home.locked():
        _run(_login(home, site, secret), LeaveRequest(home))


async def _login(home: "Home", site: str, token: str) -> None:
    from peer_agent.display.device_code import show_code
    from peer_agent.site.enrolment import Enrolment

    known = await Enrolment(show=show_code, say=_say, token=token).enrol(home, site)
    typer.echo(_("This machine now works for {person} at {site}.").format(person=known.person, site=known.url))


@app.command(help=_("Train the run at RUN_URL until it is finished or you press Ctrl-C."))
def join(
    run_url: str,
    *,
    token_file: TokenFile = "",
    token: Token = "",  # noqa: ARG001 (refused if given)
    threads: Annotated[int, typer.Option(min=0, help=_("CPU threads; default: all cores but one."))] = 0,
    publish: Annotated[str, typer.Option(help=_("Also publish snapshots on the Hub, as NAMESPACE/NAME."))] = "",
    auxiliary: Auxiliary = False,
    listen: Listen = False,
    reserve: Reserve = RESERVE_PERCENT,
    disk: Disk = DISK_GB,
    compile: Compile = False,  # noqa: A002 (the option's name)
    host: Host = ANYWHERE[0],
    port: Port = 0,
    advertise: Advertise = 0,
    attached: Attached = False,
    json: Json = False,
) -> None:
    from msgspec.structs import replace

    from peer_agent.display.device_code import show_code
    from peer_agent.display.json_lines import JsonLinesView
    from peer_agent.display.lines import View
    from peer_agent.display.terminal import LiveView, is_terminal
    from peer_agent.machine.hardware import of_packages
    from peer_agent.machine.leave_request import LeaveRequest
    from peer_agent.machine.limits import apply_limits, usual_limits
    from peer_agent.protocol.credentials import Role
    from peer_agent.relay.place import Place
    from peer_agent.site.credential import run_of
    from peer_agent.site.enrolment import Enrolment
    from peer_agent.trainer.joining import join_run

    _refuse_of_auxiliary(auxiliary, {"--publish": bool(publish), "--listen": listen, "--compile": compile})
    _for_programs(json)
    plain = View() if auxiliary or not is_terminal(sys.stdout) else LiveView()
    view = JsonLinesView() if json else plain
    with view.hears_errors() if isinstance(view, JsonLinesView) else contextlib.nullcontext():
        if not auxiliary and (fault := of_packages()):
            raise Problem(fault)
        limits = replace(usual_limits(threads or None, reserve, disk), compiles=compile)
        apply_limits(limits)
        home = _home()
        show, say = (view.ask_for_approval, view.say) if isinstance(view, JsonLinesView) else (show_code, _say)
        role = Role.AUXILIARY if auxiliary else Role.TRAINER
        enrolment = Enrolment(show=show, say=say, role=role, run=run_of(run_url), token=token_in(token_file))
        with home.locked():
            leave_request = LeaveRequest(home)
            place = Place(host, port, advertise)
            listener = place if listen else None
            work = (
                _average(run_url, enrolment, limits, leave_request, view=view, place=place)
                if auxiliary
                else join_run(run_url, enrolment, limits, leave_request, view=view, publish=publish, place=listener)
            )
            _run(work, leave_request, attached=attached)


def _refuse_of_auxiliary(auxiliary: bool, options: Mapping[str, bool]) -> None:  # noqa: FBT001 (of the command line)
    for option in (name for name, is_given in options.items() if auxiliary and is_given):
        raise typer.BadParameter(_("{option} is for machines that train").format(option=option))


async def _average(
    run_url: str,
    enrolment: "Enrolment",
    limits: "Limits",
    leave_request: "LeaveRequest",
    *,
    view: "View",
    place: "Place",
) -> None:
    from peer_agent.relay.auxiliary import run_auxiliary
    from peer_agent.site.machine_control import MachineControl
    from peer_agent.trainer.joining import moved, prepare

    owner = MachineControl(leave_request.home, limits, view.tell)
    prepared = await prepare(run_url, enrolment, leave_request.home, view, disk_gb=None)
    while True:
        await run_auxiliary(prepared.access, owner, leave_request, view, place=place)
        if not owner.move_to or leave_request.is_asked:
            return
        prepared = await moved(prepared, owner, view, disk_gb=None)


@app.command(help=_("Ask this machine's agent to finish its step and leave."))
def leave(
    *, now: Annotated[bool, typer.Option("--now", help=_("Leave now; other machines finish the step."))] = False
) -> None:
    from peer_agent.machine.leave_request import FINISH_S, request_leave

    holder = request_leave(_home(), now=now, patience_s=FINISH_S + LEAVE_S)
    typer.echo(_("The agent (process {pid}) has left.").format(pid=holder))


@app.command(help=_("Show what this machine's agent is doing."))
def status(*, json: Json = False) -> None:
    import time

    import msgspec

    from peer_agent.display.status import status_facts, status_lines

    _for_programs(json)
    home = _home()
    facts = status_facts(home, time.time())
    typer.echo(msgspec.json.encode(facts) if json else "\n".join(status_lines(home, facts)))


@app.command(help=_("Install the newer agent that SITE offers, if the agent's publisher has signed it."))
def upgrade(site: str) -> None:
    import asyncio

    from peer_agent import __version__
    from peer_agent.site.credential import site_of
    from peer_agent.site.upgrade import upgrade as upgrade_from

    version = asyncio.run(upgrade_from(site_of(site)))
    text = (
        _("Upgraded to version {version}.") if version else _("Version {version} is the latest that the site offers.")
    )
    typer.echo(text.format(version=version or __version__))


@app.command(help=_("Remove what this machine stores for SITE: its identity and the files of its runs."))
def forget(
    site: str, *, yes: Annotated[bool, typer.Option("--yes", help=_("Do not ask."))] = False, json: Json = False
) -> None:
    import msgspec

    from peer_agent.machine.home import forget_site
    from peer_agent.site.credential import site_of

    _for_programs(json)
    home, address = _home(), site_of(site)
    with home.locked():
        known = home.known(address)
        if not yes:
            question = _("Forget {site}, where this machine works for {person}?")
            typer.confirm(question.format(site=address, person=known.person), abort=True)
        freed = forget_site(home, address)
    facts = {"site": address, "person": known.person, "freed_bytes": freed}
    words = _("{site} is forgotten; {size} MB freed. Accepted contributions stay in the model.")
    typer.echo(msgspec.json.encode(facts) if json else words.format(site=address, size=f"{freed / 1e6:.1f}"))


@app.command(help=_("Diagnose problems that keep this machine from training."))
def doctor(
    site: Annotated[str, typer.Argument(help=_("A site or a run; default: all known ones."))] = "",
    *,
    json: Json = False,
) -> None:
    import msgspec

    from peer_agent.doctor import examine
    from peer_agent.machine.leave_request import LeaveRequest
    from peer_agent.site.credential import site_of

    _for_programs(json)
    home = _home()
    checks = _run(examine(home, site_of(site) if site else ""), LeaveRequest(home))
    lines = [check.line() for check in checks or [] if not check.explained_by]
    typer.echo(msgspec.json.encode(checks) if json else "\n".join(lines))
    if any(check.verdict == "fail" for check in checks or []):
        raise typer.Exit(1)


@app.command(help=_("Average gradients and keep the log for the runs of SITE."))
def relay(
    site: str,
    *,
    token_file: TokenFile = "",
    token: Token = "",  # noqa: ARG001 (refused if given)
    host: Annotated[str, typer.Option(help=_("Address to listen on."))] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help=_("Port to listen on; 0: any free one."))] = 0,
    advertise: Annotated[str, typer.Option(help=_("ws(s):// address where agents reach this relay."))] = "",
    keep_gb: Annotated[int, typer.Option(min=0, help=_("GB of each run's averages to keep as a reserve."))] = 10,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help=_("Port for Prometheus; 0: none."))] = 0,
    attached: Attached = False,
    handed_over: Annotated[int, typer.Option(hidden=True)] = -1,  # a file number, given by `manage.py serve`
) -> None:
    from peer_agent.machine.leave_request import LeaveRequest

    if host in ANYWHERE and not advertise:
        raise Problem.of("E112", thing=_("The address where agents reach this relay (--advertise)"))
    secret, home = token_in(token_file), _home()
    with home.locked():
        place: dict[str, Any] = {"host": host, "port": port, "advertise": advertise, "keep_bytes": keep_gb * GIGABYTE}
        work = _relay(home, site, secret, place, metrics_port=metrics_port, handed_over=handed_over)
        _run(work, LeaveRequest(home), attached=attached)


async def _relay(
    home: "Home", site: str, token: str, place: dict[str, Any], *, metrics_port: int, handed_over: int
) -> None:
    import asyncio
    import socket
    from functools import partial

    from peer_agent.display.device_code import show_code
    from peer_agent.protocol.credentials import Role
    from peer_agent.relay.metrics import serve_metrics
    from peer_agent.relay.process import Relay
    from peer_agent.site.enrolment import Enrolment, access_for

    show = partial(show_code, lead=_("To approve this machine as a relay, an operator of the site opens"))
    access = await access_for(home, site, Enrolment(show=show, say=_say, role=Role.RELAY, token=token))
    connections = socket.socket(fileno=handed_over) if handed_over >= 0 else None
    relay = Relay(home, access, **place, handed_over=connections)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay.run())
        if metrics_port:
            tasks.create_task(serve_metrics(relay, place["host"], metrics_port))


def _for_programs(json: bool) -> None:  # noqa: FBT001 (a flag of the command line)
    """Switch this process to English if it prints JSON, because programs read that output."""
    if json:
        speak(ENGLISH)


def _say(text: str) -> None:
    print(sanitize(text), flush=True)


def _home() -> "Home":
    from peer_agent.machine.home import Home, home_folder

    return Home(home_folder(dict(os.environ)))


def _run(work: Coroutine[Any, Any, Any], leave_request: "LeaveRequest", *, attached: bool = False) -> Any:
    """Run `work` until it ends, or until a signal, the end of standard input or `manyhands leave` stops it."""
    import asyncio

    return asyncio.run(_until_asked(work, leave_request, attached=attached))


async def _until_asked(work: Coroutine[Any, Any, Any], leave_request: "LeaveRequest", *, attached: bool) -> Any:
    import asyncio
    import signal

    from peer_agent.machine.leave_request import Unattended, on_end_of_input

    loop = asyncio.get_running_loop()
    loop.set_default_executor(Unattended())
    task = asyncio.ensure_future(work)

    def leave(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already closed
            loop.call_soon_threadsafe(task.cancel)

    def finish(*_: object) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(leave_request.ask, task.cancel)

    signal.signal(signal.SIGINT, finish)
    signal.signal(signal.SIGTERM, leave)
    if attached:
        on_end_of_input(leave)
    watch = asyncio.create_task(leave_request.watch(task.cancel))
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        watch.cancel()


def main() -> None:
    """Run the command and end the process."""
    os._exit(run())  # `sys.exit` would wait for threads that cannot be stopped


def run(command: Callable[[], Any] | None = None) -> int:
    """Run `command` in this process, or the command that the arguments name. Return the exit status.

    A numbered error is printed as one sentence.
    """
    take_variable(os.environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SanitizingFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # otherwise, httpx2 logs a line for each request
    status = status_of(command or app)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status


def status_of(command: Callable[[], Any]) -> int:
    """Run a command and return its exit status. Print its numbered errors; raise any other error."""
    try:
        command()
    except SystemExit as end:  # typer ends every command with SystemExit
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        from peer_agent.machine.faults import faults_of, in_readers_words, sanitize_fault

        faults = faults_of(error)
        if not faults:
            raise
        for fault in faults:
            print(in_readers_words(sanitize_fault(fault)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
