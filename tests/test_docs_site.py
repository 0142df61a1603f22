"""The documentation builds as a site without warnings, and its internal links resolve."""

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.test_house import ROOT

pytestmark = pytest.mark.check


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.links.update(found[name] for name in ("href", "src") if name in found)
        self.anchors.update(found[name] for name in ("id", "name") if name in found)


def broken_links(site: Path) -> Iterator[str]:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if not target.is_file() or (fragment and target in pages and fragment not in pages[target].anchors):
                yield f"{path.relative_to(site.resolve())}: {link}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html")
    done = subprocess.run(
        [*command, "-d", built / "doctrees", ROOT / "docs", built / "html"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return built / "html"


def test_every_internal_link_resolves(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 50
    assert sorted(broken_links(site)) == []


def test_every_page_is_in_the_table_of_contents(site: Path) -> None:
    listed = {unquote(urlsplit(link).path) for link in Page(site / "index.html").links}
    pages = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")} - {
        "plan.html"
    }
    decisions = {page for page in pages if page.startswith("decisions/0")}
    assert pages - decisions - listed == {"index.html"} - listed


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#gone"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="https://example.org/"></a><a href="#there"></a></p>')
    assert sorted(broken_links(tmp_path)) == ["a.html: b.html#gone", "a.html: c.html"]
