"""The `manyhands` command: words for people, one exit status per kind of ending (0 done, 1 a numbered error)."""

import asyncio
import contextlib
import errno
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from peer_agent.config import Home, home_folder
from peer_agent.limits import apply_limits, usual_limits
from peer_agent.passport import Passport, log_in, site_of
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem

if TYPE_CHECKING:
    from peer_agent.agent import Agent
    from peer_agent.snapshot_publisher import SnapshotPublisher

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train one model together."
)

Token = Annotated[str, typer.Option(help="One-time token of the site's machines page, if this machine is new there.")]
Attached = Annotated[bool, typer.Option(hidden=True, help="Leave when standard input ends.")]
NEEDED = ("torch", "transformers", "safetensors")
DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 (no address of it can be told to anybody)


@app.command()
def login(site: str, token: Annotated[str, typer.Option(help="One-time token of the site's machines page.")]) -> None:
    """Make this machine known to SITE."""
    home = _home()
    with home.locked():
        _run(_login(home, site, token))


async def _login(home: Home, site: str, token: str) -> None:
    known = await log_in(home, site, token)
    typer.echo(f"This machine now works for {known.person} at {known.url}.")


@app.command()
def join(
    run_url: str,
    *,
    token: Token = "",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; default: all cores but one.")] = 0,
    publish: Annotated[str, typer.Option(help="Also publish snapshots on the Hub, as NAMESPACE/NAME.")] = "",
    attached: Attached = False,
) -> None:
    """Help to train the run at RUN_URL, until it is finished or you press Ctrl-C."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Problem.of("E103", missing=", ".join(missing))
    limits = usual_limits(threads or None)
    apply_limits(limits)
    home = _home()
    with home.locked():
        _run(_join(home, run_url, token, limits, publish), attached=attached)


async def _join(home: Home, run_url: str, token: str, limits: Any, publish: str) -> None:
    from peer_agent.view import View

    site, slug = site_of(run_url), _slug(run_url)
    if token:
        await log_in(home, site, token)
    known = home.sites().get(site)
    if known is None:
        raise Problem.of("E101", site=site)
    passport = Passport(home, known, Role.TRAINER, slug)
    await passport.renew()
    agent = (await asyncio.to_thread(_agent_class))(home, passport, limits, View())
    agent.publisher = _publisher(agent, publish) if publish else None
    await agent.run()
    if agent.publisher is not None:
        await agent.publisher.finish()


def _publisher(agent: "Agent", repository: str) -> "SnapshotPublisher":
    """Raises Problem E348, E353: before any work, since the person is still there."""
    from peer_agent.publishing.repository import check_name
    from peer_agent.snapshot_publisher import SnapshotPublisher, hub_token

    check_name(repository)
    return SnapshotPublisher(agent.home, agent.passport, repository, hub_token(), agent.view.say)


def _agent_class() -> "type[Agent]":
    """Loads torch: after the cheap checks, and in a thread, so that Ctrl-C is heard meanwhile."""
    from peer_agent.agent import Agent

    return Agent


@app.command()
def relay(
    site: str,
    *,
    token: Token = "",
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any free one.")] = 0,
    advertise: Annotated[str, typer.Option(help="ws(s):// address under which agents reach this relay.")] = "",
    attached: Attached = False,
) -> None:
    """Average and keep the log for the runs of SITE."""
    if host in ANYWHERE and not advertise:
        raise Problem.of("E112", thing="The address under which agents reach this relay (--advertise)")
    home = _home()
    with home.locked():
        _run(_relay(home, site, token, host=host, port=port, advertise=advertise), attached=attached)


async def _relay(home: Home, site: str, token: str, *, host: str, port: int, advertise: str) -> None:
    from peer_agent.relay import Relay

    site = site_of(site)
    if token:
        await log_in(home, site, token, kind="relay", name="relay")
    known = home.sites().get(site)
    if known is None:
        raise Problem.of("E101", site=site)
    await Relay(home, Passport(home, known, Role.RELAY), host=host, port=port, advertise=advertise).run()


def _home() -> Home:
    return Home(home_folder(dict(os.environ)))


def _slug(run_url: str) -> str:
    parts = [part for part in urlsplit(run_url).path.split("/") if part]
    if len(parts) < 2 or parts[-2] != "runs":
        raise Problem.of("E305", address=run_url)
    return parts[-1]


def _run(work: Coroutine[Any, Any, Any], *, attached: bool = False) -> Any:
    """Until it is done, or a signal (or the end of standard input) asks to leave."""
    return asyncio.run(_until_asked(work, attached=attached))


class _Unattended(ThreadPoolExecutor):
    """Nobody waits for its threads in the end: one may be in a download or a gradient, and cannot be stopped."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().shutdown(wait=False, cancel_futures=True)


async def _until_asked(work: Coroutine[Any, Any, Any], *, attached: bool) -> Any:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_Unattended())
    task = asyncio.ensure_future(work)

    def leave(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # asked twice, when it is closed already
            loop.call_soon_threadsafe(task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    if attached:
        threading.Thread(target=_wait_for_end_of_input, args=(leave,), daemon=True).start()
    try:
        return await task
    except asyncio.CancelledError:
        return None


def _wait_for_end_of_input(leave: Any) -> None:
    while os.read(0, 4096):  # not the buffered stream: its lock would be held when the interpreter ends
        pass
    leave()


def main() -> None:
    """Entry point. Every error a person can do something about ends as one numbered sentence."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    status = status_of(app)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)  # the interpreter would wait for threads that nobody can stop


def status_of(command: Callable[[], Any]) -> int:
    """Run a command; its exit status, once what went wrong is said."""
    try:
        command()
    except SystemExit as end:  # typer ends every command by it
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        problems = _problems_in(error)
        if not problems:
            raise
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1
    return 0


def _problems_in(error: BaseException) -> list[Problem]:
    """The numbered errors that this is; none where something of it has no number."""
    match error:
        case Problem():
            return [error]
        case OSError(errno=int(number)) if number in DISK:
            return [Problem.of("E106", path=error.filename or "your files", reason=error.strerror)]
        case BaseExceptionGroup():
            parts = [_problems_in(part) for part in error.exceptions]
            return [problem for part in parts for problem in part] if all(parts) else []
    return []


if __name__ == "__main__":
    main()
