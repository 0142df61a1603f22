"""Take screenshots of all the main pages, using a real site, agents and a browser: `python -m scripts.screenshots`.

Screenshots for the README go to docs/images/*.png. Those of every page go to var/screenshots/*.png, in three widths,
both light and dark. Only the names of people, machines and runs are invented.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "platform"))

from playwright.sync_api import Browser  # noqa: E402

from demo.recipes import python_text  # noqa: E402
from demo.visitor import Visitor  # noqa: E402
from tests.end_to_end.rig.browser import LIVE, Reader, chromium, sign_in  # noqa: E402
from tests.end_to_end.rig.swarm import PASSWORD, Swarm  # noqa: E402

BEST, ALL = ROOT / "docs" / "images", ROOT / "var" / "screenshots"
# People, and the names of their machines.
PEOPLE = {"Amina": "kitchen-laptop", "Teo": "gaming-pc", "Noor": "old-thinkpad"}
# A command prefix that runs an agent under another host name. It needs Linux and root.
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')
FINISHED_STEPS, STEPS_BEFORE, STEPS = 60, 130, 1500
RECIPE = {"width": "64", "target_batch": "96", "vocab": "1024"}
PROMPTS = "Return a new\nThe default is"
CODE = re.compile(r"\?code=([\w-]+)")

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WIDTHS = {390: 844, 820: 1180, 1440: 900}  # widths and heights of a phone, a tablet and a computer screen
SETTLED_MS = 1500  # wait for animated numbers to stop


class Page(NamedTuple):
    path: str
    who: str = ""
    wait: str = "main"


class Picture(NamedTuple):
    name: str
    page: str
    width: int = 1280
    height: int = 860
    scheme: Scheme = "light"


PAGES = {
    "front": Page("/"),
    "run": Page("{going}", wait=LIVE),
    "run-owner": Page("{going}", who="Amina", wait=LIVE),
    "run-finished": Page("{finished}", wait="text=Load it"),
    "run-waits": Page("{waits}"),
    "run-paused": Page("{paused}"),
    "draft-failed": Page("{failed}manage/", who="Amina"),
    "draft": Page("{draft}", who="Amina"),
    "leaderboard": Page("{going}leaderboard/"),
    "activity": Page("{going}activity/"),
    "swarm": Page("{going}swarm/"),
    "credit": Page("/people/Teo{going}"),
    "person": Page("/people/Teo/"),
    "certificate": Page("/people/Teo/certificate/"),
    "team": Page("/teams/hands/", who="Amina"),
    "machines": Page("/machines/", who="Amina"),
    "limits": Page("{limits}", who="Amina"),
    "approve": Page("/approve/?code={code}", who="Amina", wait=".code"),
    "new-run": Page("/runs/new/", who="Amina"),
    "manage": Page("{going}manage/", who="Amina"),
    "manage-draft": Page("{draft}manage/", who="Amina"),
    "manage-waits": Page("{waits}manage/", who="Amina"),
    "manage-finished": Page("{finished}manage/", who="Amina"),
    "publish": Page("{finished}publish/", who="Amina"),
    "trail": Page("{going}trail/", who="Amina"),
    "account": Page("/account/", who="Amina"),
    "notifications": Page("/account/notifications/", who="Amina"),
    "try": Page("{finished}try/"),
    "download": Page("/download/"),
    "help": Page("/help/"),
    "sign-up": Page("/signup/"),
    "log-in": Page("/login/"),
    "api": Page("/api/v1/docs"),
    "missing": Page("/nothing/here/"),
}

PICTURES = [
    Picture("run-light", "run"),
    Picture("run-dark", "run", scheme="dark"),
    Picture("run-phone", "run", 390, 844),
    Picture("front", "front", height=1000),
    Picture("finished", "run-finished", height=1000),
    Picture("new-run", "new-run"),
    Picture("machines", "machines", height=720),
    Picture("approve-phone", "approve", 390, 844),
    Picture("swarm", "swarm", height=720),
    Picture("person", "person"),
]


def main() -> None:
    """Start a site, agents and a browser, wait until there is a loss curve, and take the pictures."""
    for target in (BEST, ALL):
        target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder) / "swarm") as swarm, chromium() as browser:
        places = begun(swarm)
        for picture in PICTURES:
            page = PAGES[picture.page]
            with opened(browser, swarm, places, page, picture.scheme, scale=2) as reader:
                take(reader, picture.width, picture.height, BEST / f"{picture.name}.png")
        for name, page in PAGES.items():
            for scheme in SCHEMES:
                with opened(browser, swarm, places, page, scheme) as reader:
                    for width, height in WIDTHS.items():
                        take(reader, width, height, ALL / f"{name}-{scheme}-{width}.png", is_whole=True)


def begun(swarm: Swarm) -> dict[str, str]:
    """Create runs in all states, and three people with machines. Return the values that complete the pages' paths."""
    swarm.start_site()
    people = {name: swarm.sign_up(name) for name in PEOPLE}
    amina, places = people["Amina"], {}
    text = python_text()

    def at(title: str, trainers: int, steps: int, **more: str) -> str:
        recipe = {**RECIPE, "title": title, **more}
        swarm.open_run(amina, text[:600_000], trainers=trainers, steps=steps, **recipe)
        return f"/runs/{swarm.slug}/"

    places["finished"] = at(
        "What functions return", 1, FINISHED_STEPS, prompts=PROMPTS, width="32", snapshot_every="20"
    )
    for name, person in people.items():
        swarm.start_agent(f"{name.lower()}-first", token=swarm.token_of(person), inside=(*NAMED, PEOPLE[name]))
    swarm.wait_finished()
    places["waits"] = at("Words of a language few speak", 8, 900, purpose="A keyboard for those who write it.")
    places["paused"] = at("Proverbs", 2, 900)
    amina.submit(f"{places['paused']}manage/", {"action": "pause"})
    broken = ("recipes.jsonl", b'{"minutes": 40}\n' * 1000)  # rows without text
    swarm.draft(amina, broken, trainers=2, steps=900, **RECIPE, title="Recipes of one kitchen")
    places["failed"] = f"/runs/{swarm.slug}/"
    swarm.draft(
        amina, text[:600_000], trainers=2, steps=900, **RECIPE, title="Letters of a family", visibility="private"
    )
    places["draft"] = f"/runs/{swarm.slug}/"
    amina.submit("/teams/new/", {"name": "Hands"})
    places["going"] = at(
        "A small model of Python's own words", len(PEOPLE), STEPS, snapshot_every="20", prompts=PROMPTS
    )
    for name, person in people.items():
        swarm.start_agent(name.lower(), token=swarm.token_of(person), inside=(*NAMED, PEOPLE[name]))
    swarm.wait_for_step(STEPS_BEFORE, limit_s=600)
    return places | {"limits": limits_of(amina), "code": asked(swarm)}


def limits_of(person: Visitor) -> str:
    """Return the address of the page on which a person sets limits for one of their machines."""
    found = re.search(r"/machines/[-0-9a-f]+/limits/", person.read("/machines/"))
    assert found is not None
    return found[0]


def asked(swarm: Swarm) -> str:
    """Start a machine that asks to be approved, and return the code that it shows."""
    swarm.start_agent("asking", token="", inside=(*NAMED, "garage-server"))
    swarm.wait(lambda: CODE.search(swarm.log("asking")), 60, "a machine asks to be approved")
    return next(found[1] for found in CODE.finditer(swarm.log("asking")))


@contextmanager
def opened(
    browser: Browser, swarm: Swarm, places: dict[str, str], page: Page, scheme: Scheme, *, scale: int = 1
) -> Iterator[Reader]:
    """Open a page in a new browser session, logged in as the person whom the page needs, and yield the session."""
    reader = Reader(browser, color_scheme=scheme, device_scale_factor=scale)
    if page.who:
        sign_in(reader, swarm.url, page.who, PASSWORD)
    reader.page.goto(swarm.url + page.path.format(**places))
    reader.page.wait_for_selector(page.wait, state="attached")
    yield reader
    reader.context.close()


def take(reader: Reader, width: int, height: int, path: Path, *, is_whole: bool = False) -> None:
    """Save a screenshot of a window of this size. With `is_whole`, include the page below the window's edge."""
    reader.page.set_viewport_size({"width": width, "height": height})
    reader.page.wait_for_timeout(SETTLED_MS)
    reader.page.screenshot(path=path, full_page=is_whole)
    print(f"wrote {path.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    main()
