"""The agent's page in a terminal: one sentence, one bar, figures, the last events. 80 columns are enough."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from peer_agent.plain import PlainFormatter
from peer_agent.status import Status, sentence
from peer_agent.view import View

WIDTH, BAR = 100, 40
LOG_BYTES = 1_000_000
HINT = "Ctrl-C finishes this step and leaves; a second Ctrl-C leaves at once."


class LiveView(View):
    """The figures in place, instead of lines, while `live()` lasts; lines before and afterwards."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        super().__init__(stream)
        self.console = Console(file=stream, highlight=False)
        self._live: Live | None = None

    def show(self, line: str) -> None:
        if self._live is None:
            super().show(line)
        else:
            self.refresh()

    def progress(self, step: int, samples: int, speed: float) -> None:
        """The bar shows it."""

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(picture(self.now, self.console), refresh=True)

    @contextlib.contextmanager
    def live(self, log_file: Path) -> Iterator[None]:
        """Show the page; what is logged goes to a file meanwhile, and what is printed appears above the page."""
        with _logging_to(log_file), _no_echo_of_control_keys():
            picture_now = picture(self.now, self.console)
            with Live(picture_now, console=self.console, auto_refresh=False, vertical_overflow="crop") as live:
                self._live = live
                try:
                    yield
                finally:
                    self.refresh()
                    self._live = None


def is_terminal(stream: TextIO) -> bool:
    """Whether a person sees the stream, on something that can move its cursor."""
    return stream.isatty() and not Console(file=stream).is_dumb_terminal


def picture(now: Status, console: Console) -> RenderableType:
    """The page."""
    width = min(console.width, WIDTH)
    parts: list[Text | Table] = [
        Text(now.title or now.run, style="bold", no_wrap=True, overflow="ellipsis"),
        Text(sentence(now)),
        Text(""),
        Text(_bar(now, _blocks(console)), no_wrap=True, overflow="ellipsis"),
        Text(""),
        _figures(now, width),
        Text(""),
        *(Text(event, style="dim", no_wrap=True, overflow="ellipsis") for event in now.events),
        Text(HINT, style="dim", no_wrap=True, overflow="ellipsis"),
    ]
    page = Table.grid(expand=False)
    page.add_column(max_width=width - 1, no_wrap=False)
    for part in parts:
        page.add_row(part)
    return Group(Text(""), page)


def _figures(now: Status, width: int) -> Table:
    """Two columns of names and values."""
    table = Table.grid(padding=(0, 2))
    for column in range(4):
        table.add_column(style="dim" if column % 2 == 0 else "", min_width=(9, (width - 30) // 2, 9, 12)[column])
    loss = "not yet known" if now.loss is None else f"{now.loss:.3f}"
    table.add_row("state", now.doing, "up", f"{now.up_mbps:.1f} Mb/s")
    step = f"{now.step:,} of {now.target_steps:,}" if now.target_steps else ""
    table.add_row("step", step, "down", f"{now.down_mbps:.1f} Mb/s")
    table.add_row("loss", loss, "accepted", f"{now.accepted:,} samples")
    table.add_row("speed", f"{now.samples_per_s:.1f} samples/s", "rank", str(now.rank or "none yet"))
    return table


def _bar(now: Status, blocks: tuple[str, str]) -> str:
    """This machine's part of the step."""
    share = min(now.samples / now.quota, 1.0) if now.quota else 0.0
    filled = round(share * BAR)
    words = f"{now.samples:,} of {now.quota:,} samples of this step" if now.quota else "no samples of this step yet"
    return f"{blocks[0] * filled}{blocks[1] * (BAR - filled)}  {words}"


def _blocks(console: Console) -> tuple[str, str]:
    return ("#", ".") if console.options.ascii_only else ("▓", "░")


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Log lines would tear the page."""
    root = logging.getLogger()
    before = root.handlers[:]
    own = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, delay=True, encoding="utf-8")
    own.setFormatter(PlainFormatter())
    root.handlers[:] = [own]
    try:
        yield
    finally:
        root.handlers[:] = before
        own.close()


@contextlib.contextmanager
def _no_echo_of_control_keys() -> Iterator[None]:
    """A terminal writes ^C where the cursor is, in the middle of the page. Windows does not."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(0)
    quiet = [*before[:3], before[3] & ~termios.ECHOCTL, *before[4:]]
    termios.tcsetattr(0, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
