"""Uploads in a real browser: they wait for the network, survive a reload, and report errors."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, StorageState, expect

from tests.end_to_end.rig.browser import PATIENCE_MS, chromium
from tests.server.test_serve import serving, where

PIECES = 5


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[str]:
    data = tmp_path_factory.mktemp("site")
    shutil.copy(migrated_sqlite, data)
    with serving(data, MANYHANDS_UPLOAD_LIMIT_MB="6") as process:
        yield where(data, process)["url"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def signed_in(browser: Browser, site: str) -> StorageState:
    page = browser.new_context().new_page()
    page.goto(f"{site}/signup/?next=/runs/new/")
    page.fill("#id_username", "amina")
    page.fill("#id_password", "correct horse battery staple")
    page.click("main button")
    page.wait_for_selector("#id_text")
    kept = page.context.storage_state()
    page.context.close()
    return kept


@pytest.fixture
def form(browser: Browser, site: str, signed_in: StorageState) -> Iterator[Page]:
    page = browser.new_context(storage_state=signed_in).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{site}/runs/new/")
    page.wait_for_selector("#id_text")
    yield page
    page.context.close()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_bytes((b"Many hands make light work.\n" * 40_000 * PIECES)[: PIECES * 1_000_000])
    return path


class Wire:
    """A counter of the pieces that the browser sends. It cuts the connection after `until` pieces."""

    def __init__(self, page: Page, until: int | None = None) -> None:
        self.offsets: list[int] = []
        self.until = until
        page.route("**/uploads/**", self._pass)

    def _pass(self, route: Route) -> None:
        offset = route.request.headers.get("upload-offset")
        if self.until is not None and (offset is None or len(self.offsets) >= self.until) and self.offsets:
            route.abort("internetdisconnected")
            return
        if offset is not None:
            self.offsets.append(int(offset))
        route.continue_()


def said(page: Page) -> Any:
    return expect(page.locator("[data-says]"))


def test_a_text_is_there_before_the_form_is_sent(form: Page, text: Path) -> None:
    wire = Wire(form)
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    assert wire.offsets == [piece * 1_000_000 for piece in range(PIECES)]
    form.fill("#id_title", "Words")
    form.fill("#id_licence", "CC0")
    form.check("#id_may_share")
    with form.expect_request(lambda request: request.method == "POST" and "/runs/new/" in request.url) as sent:
        form.click("button:text-is('Continue')")
    assert int(sent.value.headers.get("content-length", "0")) < 100_000, "the form carries no file"
    form.wait_for_url("**/runs/words*/manage/")


@pytest.mark.check
def test_the_form_waits_for_the_text(form: Page, text: Path) -> None:
    form.fill("#id_title", "Words in time")
    form.fill("#id_licence", "CC0")
    form.check("#id_may_share")
    form.set_input_files("#id_text", text)
    form.click("button:text-is('Continue')")
    form.wait_for_url("**/runs/words-in-time*/manage/")


def test_it_waits_for_the_network_and_goes_on(form: Page, text: Path) -> None:
    wire = Wire(form, until=2)
    form.set_input_files("#id_text", text)
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    assert wire.offsets == [0, 1_000_000]
    wire.until = None
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    assert wire.offsets == [piece * 1_000_000 for piece in range(PIECES)]


@pytest.mark.check
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (429, "Too many uploads in a short time. Nothing was lost. Wait 15 minutes."),
        (507, "The disk of this site is full or cannot be written to."),
    ],
)
def test_who_has_to_wait_is_told_why(form: Page, text: Path, status: int, words: str) -> None:
    def not_now(route: Route) -> None:
        route.fulfill(
            status=status, json={"code": "E", "title": "Not now", "text": words}, headers={"Retry-After": "900"}
        )

    form.route("**/uploads/", not_now)
    form.set_input_files("#id_text", text)
    said(form).to_contain_text(f"{words} The upload will then resume automatically.", timeout=PATIENCE_MS)
    form.unroute("**/uploads/")
    form.evaluate("dispatchEvent(new Event('online'))")  # ends the wait for the network
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)


def test_it_goes_on_after_a_reload_with_the_same_file(form: Page, text: Path) -> None:
    wire = Wire(form, until=3)
    form.set_input_files("#id_text", text)
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    form.reload()  # reload while the connection is cut; otherwise the page would resume the upload
    wire.until = None
    wire.offsets.clear()
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    assert wire.offsets == [3_000_000, 4_000_000]


@pytest.mark.check
def test_a_site_that_stumbles_after_a_reload_is_waited_for(form: Page, text: Path) -> None:
    wire = Wire(form, until=3)
    form.set_input_files("#id_text", text)
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    form.reload()
    wire.until = None
    wire.offsets.clear()
    form.route("**/uploads/*/", lambda route: route.fulfill(status=503))
    form.set_input_files("#id_text", text)
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    form.unroute("**/uploads/*/")
    form.evaluate("dispatchEvent(new Event('online'))")  # ends the wait for the network
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    assert wire.offsets == [3_000_000, 4_000_000]


@pytest.mark.check
@pytest.mark.parametrize("status", [0, 409])
def test_a_piece_whose_answer_was_lost_is_not_sent_again(form: Page, text: Path, status: int) -> None:
    """Either the connection breaks, or a second tab has sent the same piece."""
    sent: list[int] = []

    def lose_second_answer(route: Route) -> None:
        offset = route.request.headers.get("upload-offset")
        if offset is None:
            route.continue_()
            return
        sent.append(int(offset))
        answer = route.fetch()
        if len(sent) != 2:
            route.fulfill(response=answer)
        elif status:
            route.fulfill(status=status, json={"code": "E319", "text": "The site has 2000000 bytes."})
        else:
            route.abort("connectionreset")

    form.route("**/uploads/**", lose_second_answer)
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    assert sent == [piece * 1_000_000 for piece in range(PIECES)]


@pytest.mark.check
def test_another_file_takes_the_place_of_one_under_way(form: Page, text: Path, tmp_path: Path) -> None:
    wire = Wire(form, until=2)
    form.set_input_files("#id_text", text)
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    (tmp_path / "other.txt").write_bytes(b"Many hands make light work.\n" * 100)
    form.set_input_files("#id_text", tmp_path / "other.txt")
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    wire.until = None
    form.evaluate("dispatchEvent(new Event('online'))")  # ends the wait for the network, also that of the first upload
    said(form).to_have_text("other.txt is uploaded (3 kB).", timeout=PATIENCE_MS)
    first = form.input_value("[name=upload]")
    form.set_input_files("#id_text", [])
    said(form).to_have_text("")
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    assert wire.offsets == [0, 1_000_000, 0, 2_000_000, 3_000_000, 4_000_000]
    assert form.input_value("[name=upload]") not in ("", first)


@pytest.mark.check
def test_a_page_that_comes_back_can_be_sent_again(form: Page, text: Path) -> None:
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    form.evaluate("document.querySelector('#id_text').disabled = true")
    form.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    expect(form.locator("#id_text")).to_be_enabled()


@pytest.mark.check
def test_a_browser_that_can_keep_nothing_sends_it_too(form: Page, text: Path) -> None:
    full = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
    form.evaluate(f"void ({full})")  # the quota became full after the page was opened
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)
    form.add_init_script(full)
    form.reload()
    form.set_input_files("#id_text", text)
    said(form).to_have_text("words.txt is uploaded (5.0 MB).", timeout=PATIENCE_MS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * 6_000_001, "(E304). The upload is 7 MB; this site accepts up to 6 MB. Upload a smaller file."),
        (b"", "(E303). The file is empty."),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_words(form: Page, tmp_path: Path, content: bytes, words: str) -> None:
    wire = Wire(form)
    (tmp_path / "words.txt").write_bytes(content)
    form.set_input_files("#id_text", tmp_path / "words.txt")
    expect(form.locator("[data-fault]")).to_contain_text(words, timeout=PATIENCE_MS)
    assert wire.offsets == []
    assert form.url.endswith("/runs/new/")


@pytest.mark.check
def test_a_file_that_was_changed_meanwhile_is_not_waited_for(form: Page, text: Path) -> None:
    """The browser cannot read the changed file, and reports only that there was no answer."""
    Wire(form, until=2)
    form.set_input_files("#id_text", text)
    said(form).to_contain_text("will resume automatically", timeout=PATIENCE_MS)
    text.write_bytes(b"Other words.\n")
    form.evaluate("dispatchEvent(new Event('online'))")
    expect(form.locator("[data-upload]")).to_contain_text("can no longer be read", timeout=PATIENCE_MS)
