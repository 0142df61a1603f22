"""The way in over HTTP and with real programs: install by the page's line, ask, approve, collect."""

import html
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demo.visitor import Visitor
from peer_agent.protocol.credentials import REQUEST, public_bytes, sign
from tests.end_to_end.rig.outside import LIMIT_S, told
from tests.end_to_end.rig.swarm import PASSWORD, Swarm


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[str]:
    with Swarm(tmp_path_factory.mktemp("way-in"), {"MANYHANDS_DOWNLOADS": str(wheel)}) as swarm:
        swarm.start_site()
        yield swarm.url


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Make the page's environment outside the clone, with the heavy packages but not the agent."""
    place = tmp_path / "home" / "manyhands"
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=LIMIT_S)
    lent = tmp_path / "lent"
    lent.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "manyhands" not in package.name and not package.name.startswith(("pip", "distutils-precedence")):
            (lent / package.name).symlink_to(package)
    own = next((place / "lib").glob("python3*")) / "site-packages"
    (own / "lent.pth").write_text(f"{lent}\n")
    return place


def typed(line: str, home: Path) -> str:
    return told(["sh", "-c", line], home, {"PATH": os.defpath, "HOME": str(home)})


def test_the_line_of_the_page_installs_the_agent(site: str, environment: Path, tmp_path: Path) -> None:
    home = environment.parent
    found = re.search(r"<pre><code>(~/\S+/pip install (?!torch).*?)</code></pre>", Visitor(site).read("/download/"))
    assert found
    line = html.unescape(found[1])
    assert shlex.split(line)[-1].startswith(f"manyhands[train] @ {site}/download/manyhands-")
    typed(f"{line} --quiet --no-deps", home)  # all else is borrowed, so that no package index is needed
    assert "join" in typed("~/manyhands/bin/manyhands --help", home)
    where = typed("~/manyhands/bin/python -c 'import peer_agent; print(peer_agent.__file__)'", home)
    assert Path(where.strip()).is_relative_to(environment)


def post(url: str, body: dict[str, str]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_machine_is_approved_in_the_browser(site: str) -> None:
    key = Ed25519PrivateKey.generate()
    asks = {"name": "desk", "public_key": public_bytes(key).hex(), "system": "Linux", "run": ""}
    status, said = post(f"{site}/api/v1/devices", asks)
    assert status == 200
    proof = sign(key, REQUEST, said["device_code"].encode()).signature.hex()
    poll = {"device_code": said["device_code"], "proof": proof}
    status, answer = post(f"{site}/api/v1/devices/poll", poll)
    assert (status, answer["code"]) == (428, "E220")
    person = Visitor(site)
    person.submit("/signup/", {"username": "Amina", "password": PASSWORD})
    link = said["verification_uri_complete"].removeprefix(site)
    landed = person.submit(link, {"code": said["user_code"], "answer": "approve"})
    assert "is approved" in landed
    status, answer = post(f"{site}/api/v1/devices/poll", poll)
    assert (status, answer["person"]) == (200, "Amina")
    assert "desk" in person.read("/machines/")
    assert post(f"{site}/api/v1/devices/poll", poll)[0] == 410
