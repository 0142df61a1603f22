"""House rules that no linter checks, and the decisions that the setup script makes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import setup

ROOT = Path(__file__).resolve().parent.parent
RIVALS = "tests/benchmarks/rivals/requirements.txt"
NOT_OURS = {".git", ".venv", ".hypothesis", "var", "node_modules", "build", "dist"}
BINARY = {".png", ".webp", ".woff2", ".ico", ".safetensors", ".pyc"}
# A letter in brackets keeps this line from matching itself.
REGISTRIES = re.compile(r"py[p]i\.org|python[h]osted\.org|registry\.npm[j]s|registry\.yarn[p]kg")


def our_files(folder: Path = ROOT) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and path.name not in NOT_OURS and not path.name.endswith("_cache"):
            yield from our_files(path)
        elif path.is_file() and path.suffix not in BINARY:
            yield path


def pinned(name: str) -> dict[str, Requirement]:
    lines = (line.partition("  #")[0].strip() for line in (ROOT / name).read_text().splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-r "))]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


# Files


@pytest.mark.parametrize("name", ["platform/__init__.py", "tests/platform", "platform.py"])
def test_nothing_hides_the_module_platform(name: str) -> None:
    assert not (ROOT / name).exists()


def test_platform_is_pythons_own_where_our_folders_come_first() -> None:
    code = "import platform; print(platform.python_version())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform")))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == sys.version.split()[0]


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in our_files(ROOT / "tests") if path.suffix == ".py"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert "make test" in script.read_text().splitlines()
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("verb", ["setup", "demo", "test", "lint", "e2e", "bench", "format", "screenshots"])
def test_bare_make_lists_the_verbs(verb: str) -> None:
    # Under `make test`, MAKEFLAGS would make this `make` print messages about jobs and folders.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    listed = subprocess.run(["make"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    assert re.search(rf"^  make {verb}\s+\w", listed.stdout, re.MULTILINE)


def yaml_files() -> list[Path]:
    return [path for path in our_files() if path.suffix in {".yml", ".yaml", ".cff"}]


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_yaml_file_loads(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_workflows_call_only_verbs_of_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()]
    steps = [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]
    called = {verb for step in steps for verb in re.findall(r"^make (\w+)", step.get("run", ""), re.MULTILINE)}
    assert "test" in called
    assert called - verbs == set()


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.stem)
def test_workflows_ask_for_no_more_than_they_need(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)


def test_issue_forms_have_what_github_asks_of_them() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir() if path.name != "config.yml"]
    assert len(forms) == 3
    for form in (yaml.safe_load(path.read_text()) for path in forms):
        assert form["name"]
        assert form["description"]
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert {part["type"] for part in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
        assert all(part["attributes"]["label"] for part in fields)
        assert len({part["id"] for part in fields}) == len(fields)


def test_no_file_names_a_package_registry() -> None:
    assert [path for path in our_files() if REGISTRIES.search(path.read_text(errors="replace"))] == []


# Requirements


@pytest.mark.parametrize("name", ["requirements.txt", "tests/requirements.txt", RIVALS])
def test_requirements_are_exact(name: str) -> None:
    assert [str(wanted) for wanted in pinned(name).values() if not is_exact(wanted)] == []


def is_exact(wanted: Requirement) -> bool:
    return re.fullmatch(r"==[0-9a-z.]+", str(wanted.specifier)) is not None


@pytest.mark.parametrize("names", [["requirements.txt"], ["requirements.txt", "tests/requirements.txt"]])
def test_whatever_a_requirement_needs_is_pinned_too(names: list[str]) -> None:
    pins = {name: wanted for file in names for name, wanted in pinned(file).items()}
    needed = {need for wanted in pins.values() for need in needs(wanted)}
    # A CUDA build of torch brings libraries of its own, whose versions torch pins exactly.
    brought = {name for name in needed if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert needed - brought - set(pins) == set()


def needs(wanted: Requirement) -> Iterator[str]:
    if wanted.marker and not wanted.marker.evaluate():
        return
    for line in requires(wanted.name) or []:
        need = Requirement(line)
        extras = ("", *wanted.extras)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            yield canonicalize_name(need.name)


# The setup script


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".venv").mkdir()
    (tmp_path / "tests").mkdir()
    for name in ("requirements.txt", "tests/requirements.txt", "pyproject.toml"):
        (tmp_path / name).write_text("one==1\n")
    return tmp_path


def test_a_stamp_holds_until_an_input_changes(root: Path) -> None:
    assert not setup.is_stamped("demo", "cpu", root=root)
    setup.write_stamps("demo", "cpu", root)
    assert setup.is_stamped("demo", "cpu", root=root)
    (root / "requirements.txt").write_text("one==2\n")
    assert not setup.is_stamped("demo", "cpu", root=root)


def test_the_profile_test_covers_demo_and_not_the_other_way(root: Path) -> None:
    setup.write_stamps("demo", "cpu", root)
    assert not setup.is_stamped("test", "cpu", root=root)
    setup.write_stamps("test", "cpu", root)
    setup.write_stamps("test", "cpu", root)
    assert setup.is_stamped("demo", "cpu", root=root)
    assert setup.is_stamped("test", "cpu", root=root)


def test_test_requirements_leave_demo_alone(root: Path) -> None:
    setup.write_stamps("test", "cpu", root)
    (root / "tests" / "requirements.txt").write_text("two==2\n")
    assert setup.is_stamped("demo", "cpu", root=root)
    assert not setup.is_stamped("test", "cpu", root=root)


def test_stamp_does_not_survive_another_torch_removal_or_move(root: Path) -> None:
    setup.write_stamps("test", "cpu", root)
    assert not setup.is_stamped("test", "cuda", root=root)
    moved = root.with_name("moved")
    root.rename(moved)
    assert not setup.is_stamped("test", "cpu", root=moved)
    setup.write_stamps("test", "cpu", moved)
    setup.remove_stamps(moved)
    assert not setup.is_stamped("demo", "cpu", root=moved)


def test_a_new_lock_file_counts(root: Path) -> None:
    setup.write_stamps("demo", "cpu", root)
    (root / "package-lock.json").write_text("{}")
    assert not setup.is_stamped("demo", "cpu", root=root)


def test_page_edit_rebuilds_the_pages_and_installs_nothing(root: Path) -> None:
    source = root / "frontend" / "src" / "views" / "hands.ts"
    for folder in (source.parent, root / setup.BUILT, root / "frontend" / "node_modules"):
        folder.mkdir(parents=True)
    source.write_text("one")
    (root / setup.BUILT / "manifest.json").write_text("{}")
    assert not setup.is_built(root)
    setup.write_stamps("demo", "cpu", root)
    setup.frontend_stamp(root).write_text(setup.frontend_fingerprint(root))
    assert setup.is_built(root)
    source.write_text("two")
    assert not setup.is_built(root)
    assert setup.is_stamped("demo", "cpu", root=root)


def test_built_pages_that_are_gone_are_built_again(root: Path) -> None:
    (root / "frontend" / "node_modules").mkdir(parents=True)
    setup.frontend_stamp(root).write_text(setup.frontend_fingerprint(root))
    assert not setup.is_built(root)


@pytest.mark.parametrize(
    ("said", "version", "fits"),
    [("v20.19.0", (20, 19), True), ("v24.1.3", (24, 1), True), ("v18.20.4", (18, 20), False), ("?", (0,), False)],
)
def test_the_age_of_node(tmp_path: Path, said: str, version: tuple[int, ...], fits: bool) -> None:
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho '{said}'\n")
    node.chmod(0o755)
    assert setup.node_version(str(node)) == version
    assert (setup.node_version(str(node)) >= setup.OLDEST_NODE) is fits
    assert setup.node_version(str(tmp_path / "nothing")) == (0,)


@pytest.mark.parametrize(
    ("installed", "build", "system", "fits"),
    [
        ("2.13.0+cpu", "cpu", "Linux", True),
        ("2.13.0", "cpu", "Linux", False),
        ("2.13.0+cu130", "cpu", "Linux", False),
        ("2.13.0", "cuda", "Linux", True),
        ("2.13.0+cpu", "cuda", "Linux", False),
        ("2.13.0", "cpu", "Darwin", True),
        ("2.12.1+cpu", "cpu", "Linux", False),
        ("", "cpu", "Linux", False),
    ],
)
def test_only_the_build_that_was_asked_for_fits(installed: str, build: str, system: str, fits: bool) -> None:
    assert setup.torch_fits(installed, "2.13.0", build, system) is fits


def test_the_pin_of_torch_is_found() -> None:
    assert setup.pinned_version("torch", "a==1\ntorch==2.13.0 # why\ntorchx==3\n") == "2.13.0"
    with pytest.raises(setup.SetupError, match=r"^E906 "):
        setup.pinned_version("torch", "torchx==3\n")


def test_a_half_installed_package_is_forgotten(tmp_path: Path) -> None:
    for name in ("whole", "holed", "unrecorded"):
        (tmp_path / f"{name}-1.dist-info").mkdir()
    (tmp_path / "module.py").touch()
    (tmp_path / "whole-1.dist-info" / "RECORD").write_text("module.py,,\n__pycache__/module.pyc,,\n")
    (tmp_path / "holed-1.dist-info" / "RECORD").write_text("module.py,,\ngone.py,,\n")
    setup.forget_damaged(tmp_path)
    assert [path.name for path in tmp_path.glob("*.dist-info")] == ["whole-1.dist-info"]


@pytest.mark.parametrize(("version", "number"), [((3, 9), "E901"), ((3, 11), ""), ((3, 13), "")])
def test_an_old_python_is_named(version: tuple[int, int], number: str) -> None:
    assert setup.python_complaint(version)[:4] == number


@pytest.mark.parametrize(
    ("system", "machine", "number"),
    [
        ("Linux", "x86_64", ""),
        ("Linux", "aarch64", ""),
        ("Darwin", "arm64", ""),
        ("Darwin", "x86_64", "E903"),
        ("Windows", "AMD64", "E903"),
    ],
)
def test_a_machine_without_torch_is_named(system: str, machine: str, number: str) -> None:
    assert setup.machine_complaint(system, machine)[:4] == number


def test_only_root_on_debian_installs_debians_browser() -> None:
    assert setup.browser_commands(is_root=True, is_debian=True)[0][0] == "apt-get"
    assert "--with-deps" in setup.browser_commands(is_root=True, is_debian=False)[0]
    assert "--with-deps" not in setup.browser_commands(is_root=False, is_debian=True)[0]
    assert setup.browser_remedy(is_debian=True).endswith("apt-get install -y chromium libatomic1")
    assert setup.browser_remedy(is_debian=False).endswith("playwright install --with-deps chromium")


def test_the_script_parses_where_it_has_to_complain() -> None:
    """An older Python must reach E901 rather than stop at a syntax error."""
    compile_for_38 = "import ast, sys; ast.parse(open(sys.argv[1]).read(), feature_version=(3, 8))"
    subprocess.run([sys.executable, "-c", compile_for_38, setup.__file__], check=True)


def test_an_unknown_profile_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["production"]) == 2
    assert capsys.readouterr().err.startswith("E909 ")
