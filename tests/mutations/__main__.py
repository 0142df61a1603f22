"""`python -m tests.mutations [NAME ...] [--jobs 2]`: one JSON line per mutation, status 1 where one survives."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation, check, planted

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300  # of the tests of one mutation: one that makes them hang is caught, too


def copy_of_tree(folder: Path) -> Path:
    """What git tracks, as it lies in the working tree."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in names.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return folder


def is_caught(mutation: Mutation, tree: Path) -> bool:
    """Whether a test fails with the fault planted; the tree is as before afterwards."""
    path = tree / mutation.file
    whole = path.read_text()
    path.write_text(planted(mutation, whole))
    try:
        return run_tests(mutation.tests, tree) != 0
    finally:
        path.write_text(whole)


def run_tests(tests: tuple[str, ...], tree: Path) -> int:
    """The exit status of pytest on these tests of a tree."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'platform'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, check=False, capture_output=True, timeout=LIMIT_S, text=True
        )
    except subprocess.TimeoutExpired:
        return 1
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.returncode


def main(arguments: list[str]) -> int:
    """Run all, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    wanted = parser.parse_args(arguments)
    if faults := check(MUTATIONS, ROOT):
        print("\n".join(faults), file=sys.stderr)
        return 1
    chosen = [mutation for mutation in MUTATIONS if not wanted.names or mutation.name in wanted.names]
    trees: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(wanted.jobs):
            trees.put(copy_of_tree(Path(folder) / str(number)))
        tree = trees.get()
        if run_tests(tuple(sorted({test for mutation in chosen for test in mutation.tests})), tree):
            print("the tests are red before anything is planted", file=sys.stderr)
            return 1
        trees.put(tree)

        def caught(mutation: Mutation) -> bool:
            tree = trees.get()
            try:
                result = is_caught(mutation, tree)
            finally:
                trees.put(tree)
            print(json.dumps({"mutation": mutation.name, "caught": result}), flush=True)
            return result

        with ThreadPoolExecutor(wanted.jobs) as pool:
            results = list(pool.map(caught, chosen))
    print(json.dumps({"mutations": len(results), "caught": sum(results)}))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
