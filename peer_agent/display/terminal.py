"""The agent's page in a terminal of at least 80 columns: a sentence, a progress bar, figures and recent events."""

import contextlib
import logging
import sys
import textwrap
from collections.abc import Iterator, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table
from rich.text import Text

from peer_agent.display.lines import FIRST_CREDIT, Event, View
from peer_agent.display.status import Status, sentence
from peer_agent.machine.language import (
    SanitizingFormatter,
    columns_of,
    gettext_noop,
    has_spacing_marks,
    ngettext,
    padded,
    translated,
)
from peer_agent.machine.language import gettext as _

WIDTH, BAR, SHORTEST_BAR, SHORTEST_LINE = 100, 40, 8, 20
FIGURE_COLUMNS = (13, 15, 18, 15, 8)
ROW = sum(FIGURE_COLUMNS) + 2 * len(FIGURE_COLUMNS)
ALIVE, BROKEN = "green", "red"  # colors only repeat what the text says
MOST_TROUBLES = 3  # most faults shown on the page
LOG_BYTES = 1_000_000
HOLD_HINT = gettext_noop("Press Ctrl-C to leave. Change what keeps it on hold on your machines page: {site}/machines/")
HINT = gettext_noop("Press Ctrl-C to finish this step and leave; press it again to leave now.")


class LiveView(View):
    """Shows a terminal page while `live()` is active, and prints plain lines before and after."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        super().__init__(stream)
        self.console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._size = self.console.size

    def show(self, line: str) -> None:
        if self._live is None:
            self.console.print(Text(line))
        else:
            self.refresh()

    def tell(self, event: str, text: str, **facts: Any) -> None:
        """Show an event. The first credit is printed above the page, where later events cannot push it out."""
        if event == FIRST_CREDIT and self._live is not None:
            self.console.print(Text(text, style=f"bold {ALIVE}"))
        else:
            super().tell(event, text, **facts)

    def warn(self, text: str) -> None:
        if self._live is None:
            super().warn(text)
        else:  # the page shows the warning for as long as it lasts
            self.now.warning = text
            self.refresh()

    def progress(self, step: int, samples: int, speed: float) -> None:
        """Do nothing, because `refresh` draws the progress bar."""

    def refresh(self) -> None:
        if self._live is None:
            return
        if self.console.size != self._size:  # the terminal has rewrapped the old page
            self._size = self.console.size
            self.console.clear()
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        return picture(self.now, self.events, self.console)

    @contextlib.contextmanager
    def live(self, log_file: Path) -> Iterator[None]:
        """Show the page until the block ends. Logs go to a file, and printed text appears above the page."""
        with _logging_to(log_file), _no_echo_of_control_keys():
            picture_now, self._size = self._picture(), self.console.size
            with Live(picture_now, console=self.console, auto_refresh=False, vertical_overflow="crop") as live:
                self._live = live
                try:
                    yield
                finally:
                    self.refresh()
                    self._live = None


def is_terminal(stream: TextIO) -> bool:
    """Return True if the stream is a terminal whose cursor can be moved."""
    return stream.isatty() and not Console(file=stream).is_dumb_terminal


def picture(now: Status, events: Sequence[Event], console: Console) -> RenderableType:
    """Return the page: title, sentence, faults, progress bar, figures, recent events, and how to leave."""
    width = min(console.width, WIDTH) - 1  # some terminals start a new line once the last column is filled
    parts: tuple[RenderableType, ...] = (
        _cut(now.title or now.run, width, "bold"),
        _whole(sentence(now), width),
        *_troubles(now, width),
        *([_whole(now.warning, width, "dim")] if now.warning else []),
        Text(""),
        _bar(now, width, _blocks(console)),
        Text(""),
        _figures(now, width),
        Text(""),
        _events(events, width),
        Text(""),
        _whole(_last_line(now), width, "dim"),
    )
    # Not a Rich table, because Rich pads lines by its own count of columns. The lines are too long if the terminal
    # counts more.
    return Group(Text(""), Constrain(Group(*parts), width))


def _whole(words: str, width: int, style: str = "") -> Text:
    """Return the words as text that wraps at `width`. A line that the terminal wrapped itself would spoil the view."""
    return Text(textwrap.fill(words, width) if has_spacing_marks(words) else words, style=style)


def _cut(words: str, width: int, style: str = "") -> Text:
    if has_spacing_marks(words) and columns_of(words) > width:
        words = f"{words[: width - 1]}…"
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def _last_line(now: Status) -> str:
    if now.doing == "on hold":
        return translated(HOLD_HINT).format(site=now.site)
    if now.doing == "finished":
        return _("The model: {address}").format(address=f"{now.site}/runs/{now.run}/")
    return translated(HINT)


def _bar(now: Status, width: int, blocks: tuple[str, str]) -> Text:
    share = min(now.samples / now.quota, 1.0) if now.quota else 0.0
    words = ", ".join(_beside_bar(now))
    length = max(min(width - columns_of(words) - 2, BAR), SHORTEST_BAR)
    filled = round(share * length)
    bar = Text(no_wrap=True, overflow="ellipsis")
    bar.append(blocks[0] * filled, ALIVE).append(f"{blocks[1] * (length - filled)}  ")
    return bar.append(_cut(words, width - length - 2))


def _beside_bar(now: Status) -> Iterator[str]:
    if now.quota:
        words = ngettext("{samples} of {quota} sample", "{samples} of {quota} samples", now.quota)
        yield words.format(samples=f"{now.samples:,}", quota=f"{now.quota:,}")
    else:
        yield _("no samples yet")
    if now.target_steps:
        yield _("step {step} of {steps}").format(step=f"{now.step:,}", steps=f"{now.target_steps:,}")


def _figures(now: Status, width: int) -> RenderableType:
    """Return five figures side by side, or stacked if the page is too narrow."""
    credit = ngettext("{count} sample", "{count} samples", now.accepted)
    figures = (
        _loss(now),
        (_("speed"), _("{speed} samples/s").format(speed=f"{now.samples_per_s:.1f}")),
        (_("up and down"), _("{up} and {down} Mb/s").format(up=f"{now.up_mbps:.1f}", down=f"{now.down_mbps:.1f}")),
        (_("credit"), credit.format(count=f"{now.accepted:,}")),
        (_("rank"), _rank(now)),
    )
    if width < ROW or any(has_spacing_marks(words) for figure in figures for words in figure):
        return _one_below_the_other(figures)
    table = Table.grid(padding=(0, 2, 0, 0))
    for columns in FIGURE_COLUMNS:  # minimum widths, so that columns stay put when figures change
        table.add_column(min_width=columns)
    table.add_row(*(Text(name, style="dim") for name, value in figures))
    table.add_row(*(value for name, value in figures))
    return table


def _one_below_the_other(figures: Sequence[tuple[str, str]]) -> Group:
    names = max(columns_of(name) for name, value in figures)
    return Group(*(Text.assemble((padded(name, names), "dim"), "  ", value) for name, value in figures))


def _loss(now: Status) -> tuple[str, str]:
    """Return a name and a value: the held-out loss if the site has reported one, otherwise the training loss."""
    if now.heldout_loss is not None:
        return _("held-out loss"), f"{now.heldout_loss:.3f}"
    return _("training loss"), "–" if now.loss is None else f"{now.loss:.3f}"


def _rank(now: Status) -> str:
    if now.rank is None:
        return "–"
    if not now.people:
        return f"{now.rank:,}"
    return _("{rank} of {people}").format(rank=f"{now.rank:,}", people=f"{now.people:,}")


def _troubles(now: Status, width: int) -> list[Text]:
    """Return the first MOST_TROUBLES current faults, and a line that counts the rest.

    The text of a fault is never truncated, because the remedy comes last.
    """
    shown = [_whole(trouble.line, width, BROKEN) for trouble in now.troubles[:MOST_TROUBLES]]
    more = len(now.troubles) - len(shown)
    words = ngettext("{count} more: see `manyhands status`.", "{count} more: see `manyhands status`.", more)
    return [*shown, _whole(words.format(count=more), width, "dim")] if more > 0 else shown


def _events(events: Sequence[Event], width: int) -> Group:
    return Group(*(_event(event, width) for event in events))


def _event(event: Event, width: int) -> Text:
    indent = " " * (len(event.at) + 2)
    lines = textwrap.wrap(event.text, max(width - len(indent), SHORTEST_LINE)) or [""]
    words = f"\n{indent}".join(lines)
    return Text.assemble((event.at, "dim"), "  ", (words, BROKEN if event.code else ""))


def _blocks(console: Console) -> tuple[str, str]:
    return ("#", ".") if console.options.ascii_only else ("▓", "░")


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:]
    own = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, delay=True, encoding="utf-8")
    own.setFormatter(SanitizingFormatter())
    root.handlers[:] = [own]
    try:
        yield
    finally:
        root.handlers[:] = before
        own.close()


@contextlib.contextmanager
def _no_echo_of_control_keys() -> Iterator[None]:
    """Stop the terminal from echoing ^C into the page. Windows terminals do not echo it."""
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
