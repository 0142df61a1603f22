"""The entry point of the bundled program, which runs without a Python installation.

When double-clicked, it asks which run to join.
"""

import contextlib
import multiprocessing
import os
import re
import shutil
import ssl
import subprocess
import sys
import traceback
from collections.abc import MutableMapping

from peer_agent import __version__, cli
from peer_agent.machine.language import gettext as _

CHILD = ["-m", "peer_agent.publishing"]  # arguments that start the agent's child processes, in Python and in a bundle
LIBRARIES = "LD_LIBRARY_PATH"
TERMINALS = (  # programs that run a command in a new window on Linux, in order of preference
    *(["xdg-terminal-exec"], ["x-terminal-emulator", "-e"], ["gnome-terminal", "--"], ["ptyxis", "--"]),
    *(["konsole", "-e"], ["xfce4-terminal", "-x"], ["xterm", "-e"]),
)
OPENED = "MANYHANDS_WINDOW"  # set for the program in the new window, so that it never tries to open one itself
ADDRESS = re.compile(r"https?://[^\s\"'<>]+")


def main() -> None:
    """Run the command, or the agent's child process, that the command line names.

    Without arguments, ask which run to join.
    """
    multiprocessing.freeze_support()
    prepare_environment(os.environ)
    if sys.argv[1:3] == CHILD:
        from peer_agent.publishing.__main__ import main as run_child

        del sys.argv[1:3]
        sys.exit(run_child())
    if sys.argv[1:]:
        cli.main()
    if not open_terminal():
        os._exit(run_in_window())  # like cli.main, because some threads cannot be stopped


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Let programs started by this one, such as the browser, load their own libraries instead of the bundle's.

    Also set a certificate file if the bundle's OpenSSL finds none on this system.
    """
    before = environment.pop(f"{LIBRARIES}_ORIG", None)
    environment.pop(LIBRARIES, None)
    if before is not None:
        environment[LIBRARIES] = before
    places = ssl.get_default_verify_paths()
    if sys.platform != "win32" and not (places.cafile or places.capath):
        import certifi

        environment.setdefault("SSL_CERT_FILE", certifi.where())


def open_terminal() -> bool:
    """Rerun this program in a terminal window if a Linux file manager started it without one.

    Return True if the program was rerun.
    """
    has_one = any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    command = next((command for command in TERMINALS if shutil.which(command[0])), None)
    if has_one or not has_screen or command is None or sys.platform != "linux" or OPENED in os.environ:
        return False
    subprocess.Popen([*command, sys.executable], env=os.environ | {OPENED: "1"}, start_new_session=True)
    return True


def run_in_window() -> int:
    """Ask which run to join, join it, and keep the window open until the user presses Enter."""
    print(f"Manyhands {__version__}\n")
    try:
        status = cli.run(lambda: cli.app(["join", ask_for_run(last_run())]))
    except (EOFError, KeyboardInterrupt):  # the user entered no address
        return 1
    except Exception:  # noqa: BLE001 (otherwise the window closes before the user can read the traceback)
        traceback.print_exc()
        status = 1
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        input("\n" + _("Press Enter to close this window.") + " ")
    return status


def last_run() -> str:
    """Return the address of the run that this machine last joined, or ""."""
    from peer_agent.display.status import last_status
    from peer_agent.machine.home import Home, home_folder

    last = last_status(Home(home_folder(dict(os.environ))))
    return f"{last.site}/runs/{last.run}/" if last.site and last.run else ""


def ask_for_run(last: str) -> str:
    """Ask until the user pastes a run's address, alone or within a command. Return the address.

    Return `last` if the user enters nothing.
    """
    from peer_agent.machine.faults import in_readers_words
    from peer_agent.protocol.errors import Problem
    from peer_agent.site.credential import run_of

    if last:
        print(_("Press Enter to join {address} again, or paste the address of another run.").format(address=last))
    else:
        print(_("Copy the address of a run from its page in your browser. Paste it here and press Enter."))
    while True:
        typed = input("> ").strip() or last
        found = ADDRESS.search(typed)
        address = found[0] if found else typed
        try:
            run_of(address)
        except Problem as problem:
            print(in_readers_words(problem.fault))
        else:
            return address


if __name__ == "__main__":
    main()
