"""Plant the faults and print a JSON line for each; exit with 1 if one survives: `python -m tests.mutations [NAME ...]
[--jobs 2]`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.mutations.catalogue import MUTATIONS, ONLY_IN_CHECK
from tests.mutations.mutation import Mutation, check, planted

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120  # seconds for the tests of one mutation; a mutation that makes them hang counts as caught
LIMIT_OF_ALL_S = 1800  # seconds for all these tests together, without a fault
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUICK = "not postgresql and not redis"  # each fault shows on every engine, so SQLite and memory are enough


def copy_of_tree(folder: Path) -> Path:
    """Copy the files of the working tree that git tracks or would track. The working tree itself stays untouched."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in names.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return folder


def write_source(path: Path, text: str) -> None:
    """Write a module and delete its compiled form, because Python compares only the size and the modification time in
    seconds.
    """
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


class Runner:
    """A runner of tests in child processes, which end with this process."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()

    def is_green(self, tests: tuple[str, ...], tree: Path, limit_s: float, *, in_check: bool) -> bool:
        """Return True if the given tests pass in time, run as `make check` or `make test` runs them.

        Raise RuntimeError if the tests could not run.
        """
        environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'platform'}"}
        environment["MANYHANDS_CHECK"] = str(int(in_check))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:schemathesis", "-k", QUICK, *tests]
        if not in_check:
            command += ["-m", "not check"]
        output, both = subprocess.PIPE, subprocess.STDOUT
        child = subprocess.Popen(command, cwd=tree, env=environment, stdout=output, stderr=both, text=True)
        self._running.add(child)
        try:
            told, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            child.kill()
            child.wait()
            self._running.discard(child)
        if child.returncode not in (0, 1, 5):  # 5: `make test` selects none of these tests
            raise RuntimeError(f"pytest ended with {child.returncode}: {told[-2000:]}")
        return child.returncode != 1

    def is_caught(self, mutation: Mutation, tree: Path) -> bool:
        """Return True if a test fails once the fault is planted. Restore the tree afterwards."""
        path = tree / mutation.file
        whole = path.read_text()
        write_source(path, planted(mutation, whole))
        try:
            return not self.is_green(mutation.tests, tree, LIMIT_S, in_check=mutation.name in ONLY_IN_CHECK)
        finally:
            write_source(path, whole)

    def end(self) -> None:
        for child in tuple(self._running):
            child.kill()


def caught_of(chosen: list[Mutation], folder: Path, jobs: int, runner: Runner) -> list[bool]:
    """Plant each fault in one of `jobs` copies of the tree under `folder`. Return, for each fault, whether a test
    caught it. Raise RuntimeError if the tests fail without a fault.
    """
    trees: Queue[Path] = Queue()
    for number in range(jobs):
        trees.put(copy_of_tree(folder / str(number)))
    tests = tuple(sorted({test for mutation in chosen for test in mutation.tests}))
    if not runner.is_green(tests, folder / "0", LIMIT_OF_ALL_S, in_check=bool(ONLY_IN_CHECK)):
        raise RuntimeError("the tests are red before anything is planted")

    def is_caught(mutation: Mutation) -> bool:
        tree, began = trees.get(), time.monotonic()
        try:
            result = runner.is_caught(mutation, tree)
        finally:
            trees.put(tree)
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"mutation": mutation.name, "caught": result, "seconds": seconds}), flush=True)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return list(pool.map(is_caught, chosen))
        finally:
            runner.end()


def end(number: int, _: object) -> None:
    """Exit in a way that removes the copies, and ignore further signals."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    wanted = parser.parse_args(arguments)
    faults = check(MUTATIONS, ROOT)
    faults += [f"no mutation is named {name}" for name in {*wanted.names} - {mutation.name for mutation in MUTATIONS}]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    chosen = [mutation for mutation in MUTATIONS if not wanted.names or mutation.name in wanted.names]
    for number in SIGNALS:
        signal.signal(number, end)
    with tempfile.TemporaryDirectory() as folder:
        results = caught_of(chosen, Path(folder), wanted.jobs, Runner())
    by_check = sum(mutation.name in ONLY_IN_CHECK for mutation in chosen)
    print(json.dumps({"mutations": len(results), "caught": sum(results), "by_check_alone": by_check}))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
