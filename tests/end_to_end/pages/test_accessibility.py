"""axe-core finds no violation on any page: as visitor or organizer, light or dark, wide or narrow, or right to left.

Each line of PAGES is one page. Placeholders stand for addresses: `{run}` a run that trains, `{draft}` a draft by
invitation, `{invitation}` an invitation to it, `{done}` a finished run, `{requested}` a run that Teo has asked to
join, `{operator}` the first operator's link, `{reset}` a password link. `{code}` is the code of a waiting machine. The
newcomer signed in through another site, and the newcomer's name is already taken here.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser

from demo.processes import ROOT, bare_environment
from demo.recipes import python_text
from demo.visitor import Visitor
from tests.end_to_end.rig.browser import LIVE, Reader, chromium, sign_in
from tests.end_to_end.rig.swarm import MANYHANDS, PASSWORD, Swarm
from tests.end_to_end.test_organizer import LINK
from tests.web.pages.accounts.openid_double import environment, openid_double
from web.pages.site.about import TOPICS

AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"

Scheme = Literal["light", "dark"]
# width at which a page loads, width to which it is resized
WIDTHS: dict[Scheme, tuple[int, int]] = {"light": (1440, 390), "dark": (390, 1440)}
OPTIONS: dict[Scheme, dict[str, Any]] = {"light": {}, "dark": {"runOnly": ["color-contrast", "link-in-text-block"]}}
# Charts are redrawn in the frame after the window has changed its size.
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


class Page(NamedTuple):
    path: str
    who: str = ""
    wait: str = "main"


PAGES = [
    Page("/"),
    Page("/login/"),
    Page("/signup/"),
    Page("/download/"),
    Page("/help/"),
    *(Page(f"/help/{topic.slug}/") for topic in TOPICS),
    Page("{invitation}"),
    Page("{operator}"),
    Page("{reset}"),
    Page("/login/name/", who="newcomer"),
    Page("{done}", wait="text=Load it"),
    Page("{done}manage/", who="Amina"),
    Page("{done}try/"),
    Page("{done}publish/", who="Amina"),
    Page("{run}", wait=LIVE),
    Page("{run}", who="Amina", wait=LIVE),
    Page("{run}leaderboard/"),
    Page("{run}leaderboard/?period=week"),
    Page("{run}activity/"),
    Page("{run}swarm/"),
    Page("{run}swarm/", who="Amina"),
    Page("{run}embed/"),
    Page("{run}poster/"),
    Page("{run}projector/", wait=LIVE),
    Page("{run}leaderboard/?of=machines", who="Amina"),
    Page("{run}manage/", who="Amina"),
    Page("{run}trail/", who="Amina"),
    Page("{run}edit/", who="Amina"),
    Page("{run}finish/", who="Amina"),
    Page("{run}rollback/0/", who="Amina"),
    Page("{run}publish/", who="Amina"),
    Page("{requested}"),
    Page("{requested}", who="Noor"),
    Page("{requested}manage/", who="Amina", wait="#requests"),
    Page("{draft}", who="Amina"),
    Page("{draft}manage/", who="Amina", wait="#live"),
    Page("{draft}edit/", who="Amina"),
    Page("{draft}delete/", who="Amina"),
    Page("{draft}publish/", who="Amina"),
    Page("/approve/", who="Amina"),
    Page("/approve/?code=BBBBBBBB", who="Amina"),
    Page("/approve/?code={code}", who="Amina", wait=".code"),
    Page("/account/", who="Amina"),
    Page("/account/notifications/", who="Amina"),
    Page("/account/delete/", who="Amina"),
    Page("/people/Amina/"),
    Page("/people/Amina/", who="Amina"),
    Page("/people/Amina/certificate/"),
    Page("/people/Amina{run}"),
    Page("/teams/new/", who="Amina"),
    Page("{team}", who="Amina"),
    Page("{run}leaderboard/?of=teams"),
    Page("/api/v1/docs"),
    Page("/machines/", who="Amina"),
    Page("{limits}", who="Amina"),
    Page("/runs/new/", who="Amina"),
    Page("/nothing/here/"),
]


# Find the parts of each open menu that lie outside the screen.
MENUS_BESIDE_THE_SCREEN = """() => [...document.querySelectorAll("details.menu")].flatMap((menu) => {
  menu.open = true;
  const { left, right } = menu.querySelector("div").getBoundingClientRect();
  menu.open = false;
  return left < 0 || right > innerWidth ? [`${menu.innerText}: ${left} to ${right}`] : [];
})"""


# Find what can be used on a page. Closed menus hide what is in them.
USABLE = """[...document.querySelectorAll("a[href], button, summary, select, textarea, input:not([type=hidden])")]
  .filter((one) => one.checkVisibility() && !one.disabled)"""
OPERATORS = {  # who looks at the checks of a site, and what the page says to this reader only
    "root": "Add your address to send yourself a test message",
    "Ines": "Send me a test message",
    "Amina": "This page is for the operators of this site.",
}
CONFIRMED = """
from datetime import timedelta
from django.utils import timezone
from accounts.models import Person
from notices.models import Mailbox
Person.objects.filter(username="Ines").update(is_superuser=True)
ines = Person.objects.get(username="Ines")
Mailbox.objects.create(person=ines, address="ines@example.org", confirmed_at=timezone.now())
"""
BUSY = """
from jobs.models import Job
later = timezone.now() + timedelta(days=1)
for state, kind, fault in [
    ("failed", "make release", "E312: The release could not be made."),
    ("running", "prepare dataset", ""),
    ("queued", "publish release", "E346: The Hub cannot be reached."),
    ("queued", "verify snapshots", ""),
]:
    leased_until = later if state == "running" else None
    Job.objects.create(kind=kind, state=state, due=later, leased_until=leased_until, failures=bool(fault), fault=fault)
"""
WORDS_OF_JOBS = {
    "idle": {"Nothing is running or waiting."},
    "busy": {"Failed", "Running", "Will be tried again", "Queued"},
}


class Site(NamedTuple):
    swarm: Swarm
    browser: Browser
    places: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("axe")
    with openid_double() as school, chromium() as browser, Swarm(folder, environment(school.url)) as swarm:
        swarm.start_site(MANYHANDS_DOWNLOADS=str(wheel))
        amina = swarm.sign_up("Amina")
        swarm.sign_up("Noor")
        places = drafted(swarm, amina) | {"code": asked(swarm)}
        places |= {"done": finished(swarm, amina), "operator": swarm.operator_link()}
        places["requested"] = requested(swarm, amina)
        swarm.open_endless_run(amina, python_text()[:150_000])
        swarm.start_agent("amina")
        run = f"/runs/{swarm.slug}/"
        amina.submit(f"{run}manage/", {"remove-name": "Noor"}, action=f"{run}removed/")
        swarm.wait_for_step(2)
        limits = re.search(r"/machines/[-0-9a-f]+/limits/", amina.read("/machines/"))
        assert limits is not None
        yield Site(swarm, browser, places | {"run": run, "reset": reset(swarm), "limits": limits[0]})


def drafted(swarm: Swarm, organizer: Visitor) -> dict[str, str]:
    swarm.draft(organizer, python_text()[:150_000], trainers=1, steps=9, visibility="private", title="Not yet")
    draft = f"/runs/{swarm.slug}/"
    swarm.wait(lambda: "What the run learns from" in organizer.read(f"{draft}manage/"), 60, "the text is prepared")
    form = {"most_uses": "1", "lifetime": ""}
    link = LINK.search(organizer.submit(f"{draft}manage/", form, action=f"{draft}invitations/"))
    assert link is not None
    team = organizer.submit("/teams/new/", {"name": "Hands"})
    assert "Create invitation link" in team
    return {"draft": draft, "invitation": link[1], "team": "/teams/hands/"}


def requested(swarm: Swarm, organizer: Visitor) -> str:
    swarm.open_run(organizer, python_text()[:150_000], trainers=1, steps=9, visibility="request", title="By request")
    path = f"/runs/{swarm.slug}/"
    swarm.sign_up("Teo").submit(path, {"message": "I have two machines"}, action=f"{path}request/")
    return path


def reset(swarm: Swarm) -> str:
    command = [sys.executable, str(ROOT / "manage.py"), "reset_password", "Noor"]
    own = {**os.environ, "MANYHANDS_DATA": str(swarm.data)}
    said = subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout
    return said.split()[0].removeprefix(swarm.url)


def finished(swarm: Swarm, organizer: Visitor) -> str:
    swarm.open_run(organizer, python_text()[:150_000], trainers=1, steps=3, title="Done")
    swarm.start_agent("amina", token=swarm.token_of(organizer))
    swarm.wait_finished()
    assert swarm.processes["amina"].wait(60) == 0
    return f"/runs/{swarm.slug}/"


def asked(swarm: Swarm) -> str:
    home = swarm.folder / "asking"
    home.mkdir()
    swarm.start("asking", [MANYHANDS, "login", swarm.url], bare_environment(home), home)
    swarm.wait(lambda: "?code=" in swarm.log("asking"), 60, "it asks")
    return swarm.log("asking").split("?code=")[1].split()[0]


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> Any:
    """Return the colour scheme. Dark pages differ only in their colours, so only their contrast is checked."""
    return request.param


@pytest.fixture(scope="module")
def readers(site: Site, scheme: Scheme) -> Iterator[dict[str, Reader]]:
    """Yield the readers: a stranger, two people who are logged in, and a newcomer who has no name here yet."""
    found = {who: Reader(site.browser, color_scheme=scheme) for who in ("", "Amina", "Noor", "newcomer")}
    found["newcomer"].page.goto(f"{site.swarm.url}/login/with/oidc/")
    for who in ("Amina", "Noor"):
        sign_in(found[who], site.swarm.url, who, PASSWORD)
    yield found
    for reader in found.values():
        reader.context.close()


@pytest.mark.parametrize("page", PAGES, ids=[f"{page.who or 'anybody'} {page.path}" for page in PAGES])
def test_nothing_stands_in_anybodys_way(site: Site, readers: dict[str, Reader], scheme: Scheme, page: Page) -> None:
    reader, address = readers[page.who], site.swarm.url + page.path.format(**site.places)
    reader.page.set_viewport_size({"width": WIDTHS[scheme][0], "height": 844})
    reader.page.goto(address)
    assert reader.page.url == address, "this page and no other"
    reader.page.wait_for_selector(page.wait, state="attached")
    reader.page.evaluate(AXE.read_text())
    for width in WIDTHS[scheme]:
        reader.page.set_viewport_size({"width": width, "height": 844})
        stands_in_nobodys_way(reader, scheme, width)
    if scheme == "light":
        reader.page.evaluate("document.documentElement.dir = 'rtl'")
        stands_in_nobodys_way(reader, scheme, WIDTHS[scheme][-1])
        reader.page.evaluate("document.documentElement.dir = 'ltr'")
        reader.page.evaluate("document.documentElement.style.fontSize = '200%'")
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[scheme][-1], (
            "text of twice its size"
        )


def stands_in_nobodys_way(reader: Reader, scheme: Scheme, width: int) -> None:
    """Require that axe-core finds no violation and that nothing extends beyond the screen."""
    reader.page.evaluate(SETTLED)
    assert violations(reader, scheme) == [], f"{width} px"
    assert reader.page.evaluate(MENUS_BESIDE_THE_SCREEN) == [], f"{width} px"
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"


@pytest.fixture(scope="module", params=WORDS_OF_JOBS)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, str]]:
    """Yield a site that cannot reach its mail server, with two operators, and whether it has background jobs.

    Ines has confirmed her e-mail address.
    """
    with Swarm(tmp_path_factory.mktemp("checked")) as swarm:
        swarm.start_site(MANYHANDS_SMTP_URL="smtp://127.0.0.1:9", MANYHANDS_MAIL_FROM="site@example.org")
        swarm.operator()
        swarm.sign_up("Amina")
        swarm.sign_up("Ines")
        code = CONFIRMED + BUSY if request.param == "busy" else CONFIRMED
        command = [sys.executable, str(ROOT / "manage.py"), "shell", "--command", code]
        subprocess.run(command, env={**os.environ, "MANYHANDS_DATA": str(swarm.data)}, check=True)
        yield swarm, request.param


@pytest.mark.parametrize("colours", ["none", "active"])
@pytest.mark.parametrize("who", OPERATORS)
def test_a_sites_checks_stand_in_nobodys_way(
    site: Site, checked: tuple[Swarm, str], scheme: Scheme, who: str, colours: Literal["none", "active"]
) -> None:
    swarm, jobs = checked
    look: dict[str, Any] = {"color_scheme": scheme, "forced_colors": colours, "reduced_motion": "reduce"}
    reader = Reader(site.browser, **look, extra_http_headers={"X-Forwarded-For": "93.184.216.34"})
    sign_in(reader, swarm.url, who, PASSWORD)
    for width in WIDTHS[scheme]:
        reader.page.set_viewport_size({"width": width, "height": 844})
        reader.page.goto(f"{swarm.url}/operator/")
        said = reader.page.inner_text("main")
        assert OPERATORS[who] in said
        if who != "Amina":
            assert "Your browser has just reached it from the internet." in said
            assert all(words in said for words in WORDS_OF_JOBS[jobs])
            assert {"OK", "Look at this", "Not set up"} == set(reader.page.locator("main .badge").all_inner_texts())
        reader.page.evaluate(AXE.read_text())
        stands_in_nobodys_way(reader, scheme, width)
        can_be_used_by_keyboard(reader)
    reader.context.close()


def can_be_used_by_keyboard(reader: Reader) -> None:
    """Require that Tab reaches all that can be used, in its order, and that each shows that it has the focus."""
    there = reader.page.evaluate(f"{USABLE}.length")
    assert there > 0
    for place in range(there):
        reader.page.keyboard.press("Tab")
        assert reader.page.evaluate(f"{USABLE}.indexOf(document.activeElement)") == place
        assert reader.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", place


def violations(reader: Reader, scheme: Scheme) -> list[str]:
    found = reader.page.evaluate("(options) => axe.run(options).then((result) => result.violations)", OPTIONS[scheme])
    return [f"{one['id']}: {json.dumps([node['html'] for node in one['nodes']][:3])}" for one in found]


def test_axe_itself_finds_what_is_wrong(site: Site) -> None:
    reader = Reader(site.browser, color_scheme="dark")
    reader.page.set_content("<main><img src='x'><p style='color: #777; background: #666'>grey</p></main>")
    reader.page.evaluate(AXE.read_text())
    found = {scheme: {line.split(":")[0] for line in violations(reader, scheme)} for scheme in WIDTHS}
    assert found["light"] >= {"image-alt", "color-contrast"}
    assert found["dark"] == {"color-contrast"}
    reader.context.close()
