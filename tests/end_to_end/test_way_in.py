"""A machine joins over HTTP with real programs: install with the page's command, ask for approval, and collect the
approval.
"""

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

from demo.visitor import Visitor
from tests.end_to_end.rig.outside import LIMIT_S, told
from tests.end_to_end.rig.swarm import Swarm


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[str]:
    with Swarm(tmp_path_factory.mktemp("way-in"), {"MANYHANDS_DOWNLOADS": str(wheel)}) as swarm:
        swarm.start_site()
        yield swarm.url


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Create the page's environment outside the clone, with the large packages but without the agent."""
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
    typed(f"{line} --quiet --no-deps", home)  # the other packages are borrowed, so that no package index is needed
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
