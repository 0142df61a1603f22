"""A real Chromium, and a reader that records errors on its page."""

import copy
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from scripts.setup import browser_on_path

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000
LIVE = "html[data-feed=live]"
POLLING = "html[data-feed=polling]"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser installed on this machine, or else Playwright's own."""
    with sync_playwright() as playwright:
        path = browser_on_path()
        browser = playwright.chromium.launch(executable_path=path and shutil.which(path), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Reader:
    """One page in its own browser context. `faults`: script errors, dialogs, and violations of the content security
    policy.
    """

    def __init__(self, browser: Browser, *, width: int = 1440, height: int = 1000, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, **context)
        self.context.set_default_timeout(PATIENCE_MS)
        self._open()

    def another_tab(self) -> Self:
        tab = copy.copy(self)
        tab._open()
        return tab

    def _open(self) -> None:
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: self.faults.append(said.text) if "Content Security" in said.text else None)
        self.page.on("dialog", self._note)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def text(self, name: str) -> str:
        """Return the text of the page's part with this name."""
        return self.page.inner_text(f"#part-{name}")

    def wait_for(self, condition: str, limit_s: float = PATIENCE_MS / 1000) -> None:
        """Wait until a JavaScript expression is true on the page. Playwright's own wait needs `eval`, which the policy
        forbids."""
        until = time.monotonic() + limit_s
        while not self.page.evaluate(condition):
            assert time.monotonic() < until, f"not within {limit_s:g} s: {condition}"
            self.page.wait_for_timeout(50)


def sign_in(reader: Reader, site: str, name: str, password: str) -> None:
    reader.page.goto(f"{site}/login/")
    reader.page.fill("input[name=username]", name)
    reader.page.fill("input[name=password]", password)
    reader.page.click("main button.main")
    reader.page.wait_for_url(lambda address: "/login/" not in address)


def sign_up(reader: Reader, site: str, name: str, password: str) -> None:
    reader.page.goto(f"{site}/signup/")
    reader.page.fill("input[name=username]", name)
    reader.page.fill("input[name=password]", password)
    reader.page.click("main button.main")
    reader.page.wait_for_url(lambda address: "/signup/" not in address)
