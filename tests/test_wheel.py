"""The agent's wheel contains only the agent, is reproducible, and is rebuilt only when needed."""

import ast
import html
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from django.template.loader import render_to_string
from packaging.requirements import Requirement

from peer_agent.machine.hardware import NEEDED, PYTORCH_CPU
from scripts import build_wheel
from scripts.messages import PSEUDO
from tests.agent.program import Answer, credential, http_site, known_at
from tests.machine.test_preflight import site_of_size
from web.agent_package import System, _systems

ROOT = build_wheel.ROOT
CARRIED = {".py", ".mo", ".txt"}
LEFT_OUT = {"simulation", "site_work"}  # rooms that only the site or developers use


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel.build(ROOT, tmp_path_factory.mktemp("built") / "download")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a small project that is built in the same way, with a leftover from an earlier build."""
    root = tmp_path / "checkout"
    package = root / build_wheel.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (package / "cli.py").write_text("main = print\n")
    for name in build_wheel.BESIDE:
        shutil.copy(ROOT / name, root)
    stale = root / "build" / "lib" / build_wheel.PACKAGE
    stale.mkdir(parents=True)
    (stale / "gone.py").write_text("it = 'was removed'\n")
    return root


def metadata(wheel: Path) -> "list[Requirement]":
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith("/METADATA"))
        said = Parser().parsestr(packed.read(name).decode())
    return [Requirement(line) for line in said.get_all("Requires-Dist", [])]


def test_it_carries_the_agent_and_nothing_else(wheel: Path) -> None:
    sources = [path.relative_to(ROOT) for path in build_wheel.sources(ROOT) if path.suffix in CARRIED]
    ours = {path.as_posix() for path in sources if not {*PSEUDO, *LEFT_OUT} & set(path.parts)}
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {name for name in names if not name.startswith("manyhands-")} == ours
    assert {name.split("/")[0] for name in names} == {"peer_agent", "manyhands-0.1.0.dist-info"}


def imported(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_nothing_in_it_needs_what_is_left_out(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        modules = {name: set(imported(packed.read(name))) for name in packed.namelist() if name.endswith(".py")}
    rooms = tuple(f"{build_wheel.PACKAGE}.{room}" for room in LEFT_OUT)
    assert {name for name, named in modules.items() if any(each.startswith(rooms) for each in named)} == set()


def test_it_helps_and_joins_by_itself(wheel: Path, tmp_path: Path) -> None:
    """The agent stops at a model that is too large for any machine (E123). By then it has loaded everything except
    torch."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(wheel), "MANYHANDS_HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "peer_agent.cli", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert "join" in run("--help").stdout
    tells = site_of_size(10**11)
    with http_site(lambda path: issued if path.endswith("/credential") else tells(path)) as url:
        issued: Answer = (200, credential(tmp_path, "ws://127.0.0.1:9/"))
        known_at(tmp_path, url)
        assert run("join", f"{url}/runs/a/").stderr[:6] == "E123: "


def test_it_speaks_its_languages_out_of_the_zip_file(wheel: Path) -> None:
    code = "from peer_agent.machine import language; print(language.__file__, language.gettext('Loading the model.'))"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(wheel), "MANYHANDS_LANGUAGE": "bn"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=wheel.parent, env=environment, check=True, capture_output=True, text=True
    )
    place, _, said = done.stdout.strip().partition(" ")
    assert place.startswith(str(wheel))
    assert said == "মডেল লোড হচ্ছে।"


def test_its_requirements_are_ranges(wheel: Path) -> None:
    needs = metadata(wheel)
    assert {operator.operator for need in needs for operator in need.specifier} == {">="}
    assert all(need.specifier for need in needs)


def test_what_is_heavy_is_in_the_extra(wheel: Path) -> None:
    extra = {need.name: str(need.specifier) for need in metadata(wheel) if need.marker}
    assert sorted(extra) == list(NEEDED), "the agent checks for exactly these"
    assert extra["torch"] == ">=2.6"


@pytest.mark.parametrize("system", _systems("manyhands"), ids=lambda system: system.name)
def test_pip_lines_begin_with_the_build_for_the_cpu(system: System) -> None:
    """On Linux, PyPI's torch brings gigabytes of CUDA. Elsewhere, it is the build for the CPU."""
    shown = html.unescape(render_to_string("web/site/install_system.html", {"system": system}))
    venv, *installs = re.findall(r"<pre><code>(.*?)</code></pre>", shown)
    cpu = [f"~/manyhands/bin/pip install torch --index-url {PYTORCH_CPU} && {system.pip}"] * (system.name == "Linux")
    assert (venv, installs) == (system.environment, [*cpu, system.pip])


def test_the_same_sources_give_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    first = build_wheel.build(checkout, tmp_path / "one" / "download").read_bytes()
    for path in (checkout / build_wheel.PACKAGE).iterdir():
        path.chmod(0o600)
        os.utime(path, (2_000_000_000, 2_000_000_000))
    assert build_wheel.build(checkout, tmp_path / "two" / "download").read_bytes() == first


def test_leftovers_do_not_get_in_and_none_are_left(checkout: Path, tmp_path: Path) -> None:
    before = sorted(checkout.rglob("*"))
    wheel = build_wheel.build(checkout, tmp_path / "var" / "download")
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if "gone" in name]
    assert sorted(checkout.rglob("*")) == before
    assert [path.name for path in (tmp_path / "var").iterdir()] == ["download"]


def test_it_is_built_again_where_something_changed(checkout: Path, tmp_path: Path) -> None:
    download = tmp_path / "download"
    assert not build_wheel.is_current(checkout, download)
    first = build_wheel.build(checkout, download)
    assert build_wheel.is_current(checkout, download)
    (checkout / build_wheel.PACKAGE / "__pycache__").mkdir()
    (checkout / build_wheel.PACKAGE / "__pycache__" / "cli.cpython-311.pyc").touch()
    assert build_wheel.is_current(checkout, download)
    (checkout / build_wheel.PACKAGE / "view.py").touch()
    assert not build_wheel.is_current(checkout, download)
    (checkout / build_wheel.PACKAGE / "__init__.py").write_text('__version__ = "0.2.0"\n')
    second = build_wheel.build(checkout, download)
    assert (first.exists(), second.name) == (False, "manyhands-0.2.0-py3-none-any.whl")
    second.unlink()
    assert not build_wheel.is_current(checkout, download)


def test_a_build_that_fails_leaves_the_old_wheel(checkout: Path, tmp_path: Path) -> None:
    download = tmp_path / "download"
    wheel = build_wheel.build(checkout, download)
    (checkout / "pyproject.toml").write_text("[project\n")
    with pytest.raises(subprocess.CalledProcessError):
        build_wheel.build(checkout, download)
    assert wheel.exists()
    assert not build_wheel.is_current(checkout, download)


def test_setup_builds_it_in_every_profile() -> None:
    """Setup builds the wheel even if it does nothing else, and only after building the translations that the wheel
    contains.
    """
    code = (
        "from scripts import setup\n"
        "setup.is_ready = lambda *_: True\n"
        "setup.run = lambda command, error: print(str(command[-1]).rpartition('/')[2], error[:4])\n"
        "setup.chosen_torch_build = lambda: 'cpu'\n"
        "setup.build_frontend = lambda: None\n"
        "for profile in setup.REQUIREMENTS: setup.prepare(profile)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["--compile E912", "build_wheel.py E910"] * 2
