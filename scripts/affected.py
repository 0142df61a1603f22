"""Run the tests that changes in the working tree can affect: `python -m scripts.affected [--base REV] [--list]`.

A changed module affects the tests that import it, directly or through other modules, according to the import graph.
Tests that send HTTP requests to the site do not import its views, so they count as importing `web.urls`. A changed file
that is not a module affects the tests of its room and the tests that contain its name. End-to-end tests run only if
they themselves have changed, because `make test` runs the main ones.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
SITE = ("config", "jobs", "accounts", "notices", "runs", "coordination", "web", "server", "demo")
PACKAGES = (*SITE, "peer_agent", "scripts", "tests")
STRUCTURE = ("tests/test_house.py", "tests/test_rooms.py", "tests/test_messages.py", "tests/test_mutations.py")


def changed_files(base: str) -> set[str]:
    """Return the paths of files that differ from a revision or that git does not track yet."""

    def lines(*command: str) -> list[str]:
        done = subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    return {*lines("diff", "--name-only", base), *lines("ls-files", "--others", "--exclude-standard")}


def module_of(path: str) -> str:
    """Return the dotted module name of a Python file, or "" for other files."""
    if not path.endswith(".py"):
        return ""
    name = path.removeprefix("platform/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.split(".")[0] in PACKAGES else ""


def is_test(module: str) -> bool:
    """Return True if pytest collects tests from this module."""
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def path_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def import_graph() -> grimp.ImportGraph:
    """Build the import graph.

    In the graph, each test also imports the conftests of its folders, and `web.urls` if it uses a Django client.
    """
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    cache = str(ROOT / "var" / "cache" / "imports")
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=cache)
    for module in graph.find_modules_that_directly_import("django"):
        if module.startswith("tests."):
            graph.add_import(importer=module, imported="web.urls")
    tests = [module for module in graph.modules if is_test(module)]
    for conftest in (module for module in graph.modules if module.endswith(".conftest")):
        for test in (test for test in tests if test.startswith(conftest.removesuffix("conftest"))):
            graph.add_import(importer=test, imported=conftest)
    return graph


def tests_of_modules(modules: Iterable[str], graph: grimp.ImportGraph) -> Iterator[str]:
    """Yield the given modules that are test modules, and the test modules that import any of them, even indirectly."""
    for module in modules:
        if module in graph.modules:
            yield from (found for found in {module, *graph.find_downstream_modules(module)} if is_test(found))


def tests_of_file(path: str, modules: Iterable[str]) -> Iterator[str]:
    """Yield the test modules that a non-module file affects: those of its room, and those that contain its name."""
    parts = path.removeprefix("platform/").removeprefix("peer_agent/").removeprefix("tests/").split("/")
    room = f"tests.{parts[0]}."
    name = Path(path).name
    for module in modules:
        if module.startswith(room) or name in (ROOT / path_of(module)).read_text():
            yield module


def affected_tests(changed: set[str], graph: grimp.ImportGraph) -> list[str]:
    """Return the paths of the tests to run, sorted."""
    modules = {module_of(path) for path in changed} - {""}
    found = set(tests_of_modules(modules, graph))
    for path in (path for path in changed if not module_of(path)):
        found.update(tests_of_file(path, filter(is_test, graph.modules)))
    paths = {path_of(module) for module in found} | set(STRUCTURE)
    return sorted(path for path in paths if not path.startswith("tests/end_to_end/") or path in changed)


def main() -> int:
    """Print how many tests are affected, run them, and return pytest's status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="compare with this revision")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    options = parser.parse_args()
    changed = changed_files(options.base)
    tests = affected_tests(changed, import_graph())
    print(f"{len(changed)} changed files reach {len(tests)} test files", flush=True)
    if options.list:
        print("\n".join(tests))
        return 0
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m"]
    return subprocess.run([*command, "not check", *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
