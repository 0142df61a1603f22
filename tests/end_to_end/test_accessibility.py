"""axe-core on every page, as a visitor and as the organizer, light and dark, wide and narrow: no violation.

A page is one line of PAGES; `{run}` is the address of a run that trains.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser

from tests.end_to_end.browser import LIVE, Reader, chromium, sign_in
from tests.end_to_end.swarm import PASSWORD, Swarm
from web.demonstration.corpus import python_text
from web.demonstration.processes import ROOT

AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"

Scheme = Literal["light", "dark"]


class Page(NamedTuple):
    """One page, who looks at it, and what to wait for."""

    path: str
    who: str = ""
    wait: str = "main"


PAGES = [
    Page("/"),
    Page("/login/"),
    Page("/signup/"),
    Page("{run}", wait=LIVE),
    Page("{run}", who="Amina", wait=LIVE),
    Page("{run}manage/", who="Amina"),
    Page("/machines/", who="Amina"),
    Page("/runs/new/", who="Amina"),
    Page("/nothing/here/"),
]


class Site(NamedTuple):
    """A site with a run, and a browser."""

    swarm: Swarm
    browser: Browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Swarm(tmp_path_factory.mktemp("axe")) as swarm, chromium() as browser:
        swarm.start_site()
        amina = swarm.sign_up("Amina")
        swarm.open_run(amina, python_text()[:150_000], trainers=1, steps=500)
        swarm.start_agent("amina", token=swarm.token_of(amina))
        swarm.wait_for_step(2)
        yield Site(swarm, browser)


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def readers(site: Site, scheme: Scheme) -> Iterator[dict[str, Reader]]:
    """A stranger, and the organizer who is logged in."""
    found = {who: Reader(site.browser, color_scheme=scheme) for who in ("", "Amina")}
    sign_in(found["Amina"], site.swarm.url, "Amina", PASSWORD)
    yield found
    for reader in found.values():
        reader.context.close()


@pytest.mark.parametrize("page", PAGES, ids=[f"{page.who or 'anybody'} {page.path}" for page in PAGES])
def test_nothing_stands_in_anybodys_way(site: Site, readers: dict[str, Reader], page: Page) -> None:
    reader = readers[page.who]
    for width in (1440, 390):
        reader.page.set_viewport_size({"width": width, "height": 844})
        reader.page.goto(site.swarm.url + page.path.format(run=f"/runs/{site.swarm.slug}/"))
        reader.page.wait_for_selector(page.wait, state="attached")
        assert violations(reader) == [], f"{width} px"
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"


def violations(reader: Reader) -> list[str]:
    """What axe-core finds, in words."""
    reader.page.evaluate(AXE.read_text())
    found = reader.page.evaluate("axe.run().then((result) => result.violations)")
    return [f"{one['id']}: {json.dumps([node['html'] for node in one['nodes']][:3])}" for one in found]


def test_axe_itself_finds_what_is_wrong(site: Site, tmp_path: Path) -> None:
    reader = Reader(site.browser)
    reader.page.set_content("<main><img src='x'></main>")
    assert any(found.startswith("image-alt") for found in violations(reader))
    reader.context.close()
