"""Take the README's pictures: `python -m scripts.screenshots`. A real site, real agents, a real browser.

Writes docs/images/*.png. The pictures show what a newcomer sees; nothing in them is staged but the names.
"""

import sys
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "platform"))

from playwright.sync_api import Browser  # noqa: E402

from demo.corpus import python_text  # noqa: E402
from tests.end_to_end.rig.browser import LIVE, Reader, chromium, sign_in  # noqa: E402
from tests.end_to_end.rig.swarm import PASSWORD, Swarm  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PEOPLE = ("Amina", "Teo", "Noor")
STEPS_BEFORE = 130
RECIPE = {"title": "A small model of Python's own words", "width": "64", "target_batch": "96", "vocab": "1024"}


class Picture(NamedTuple):
    """One file."""

    name: str
    path: str
    who: str = ""
    width: int = 1280
    height: int = 860
    scheme: Literal["light", "dark"] = "light"
    wait: str = "main"


PICTURES = [
    Picture("run-light", "{run}", wait=LIVE),
    Picture("run-dark", "{run}", wait=LIVE, scheme="dark"),
    Picture("run-phone", "{run}", wait=LIVE, width=390, height=844),
    Picture("front", "/", height=1000),
    Picture("machines", "/machines/", who="Amina", height=720),
]


def main() -> None:
    """Start everything, wait until there is a curve to see, take the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder) / "swarm") as swarm, chromium() as browser:
        begin(swarm)
        for picture in PICTURES:
            take(picture, swarm, browser)
            print(f"wrote docs/images/{picture.name}.png", flush=True)


def begin(swarm: Swarm) -> None:
    """Three people, a machine each, and some steps made."""
    swarm.start_site()
    people = {name: swarm.sign_up(name) for name in PEOPLE}
    swarm.open_run(people["Amina"], python_text()[:600_000], trainers=len(PEOPLE), steps=300, **RECIPE)
    for name, person in people.items():
        swarm.start_agent(name.lower(), token=swarm.token_of(person))
    swarm.wait_for_step(STEPS_BEFORE, limit_s=600)


def take(picture: Picture, swarm: Swarm, browser: Browser) -> None:
    """One picture."""
    reader = Reader(
        browser, width=picture.width, height=picture.height, color_scheme=picture.scheme, device_scale_factor=2
    )
    if picture.who:
        sign_in(reader, swarm.url, picture.who, PASSWORD)
    reader.page.goto(swarm.url + picture.path.format(run=f"/runs/{swarm.slug}/"))
    reader.page.wait_for_selector(picture.wait, state="attached")
    reader.page.wait_for_timeout(1500)  # numbers have reached their values
    reader.page.screenshot(path=IMAGES / f"{picture.name}.png")
    reader.context.close()


if __name__ == "__main__":
    main()
