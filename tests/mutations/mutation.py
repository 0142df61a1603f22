"""The data type of a mutation, and how a mutation is planted."""

import re
from pathlib import Path

from msgspec import Struct


class Mutation(Struct, frozen=True):
    """A fault: `before`, which occurs once in `file`, becomes `after`. One of `tests` (files, or tests in them) must
    fail.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


class Stale(Exception):
    """Raised if a pattern does not occur exactly once, or if the mutation changes nothing."""


def planted(mutation: Mutation, text: str) -> str:
    """Return the text with the fault in it. Raise Stale if the pattern does not occur exactly once."""
    count = text.count(mutation.before)
    if count != 1:
        raise Stale(f"{mutation.name}: {mutation.file} has {count} times {mutation.before!r}")
    if mutation.before == mutation.after:
        raise Stale(f"{mutation.name}: it changes nothing")
    return text.replace(mutation.before, mutation.after)


def check(mutations: tuple[Mutation, ...], root: Path) -> list[str]:
    """Return the errors in the listed mutations themselves, such as a missing test."""
    faults = []
    for mutation in mutations:
        try:
            compile(planted(mutation, (root / mutation.file).read_text()), mutation.name, "exec")
        except (Stale, FileNotFoundError) as error:
            faults.append(str(error))
        except SyntaxError as error:  # a syntax error needs no test to be noticed
            faults.append(f"{mutation.name}: {error}")
        faults += [f"{mutation.name}: no {test}" for test in mutation.tests if not _is_there(test, root)]
    names = [mutation.name for mutation in mutations]
    return faults + [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]


def _is_there(test: str, root: Path) -> bool:
    """Return True if the file exists and has the classes and functions that `test` names."""
    file, *names = test.split("::")
    if not (root / file).is_file():
        return False
    text = (root / file).read_text()
    return all(re.search(rf"^ *(async )?(def|class) {name}\b", text, re.MULTILINE) for name in names)
