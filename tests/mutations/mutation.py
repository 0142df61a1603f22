"""What a mutation is, and how it is planted."""

from pathlib import Path

from msgspec import Struct


class Mutation(Struct, frozen=True):
    """`before` stands once in `file` and becomes `after`; at least one of `tests` must then fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


class Stale(Exception):
    """The pattern is not there, or not once."""


def planted(mutation: Mutation, text: str) -> str:
    """The text with the fault in it. Raises Stale."""
    count = text.count(mutation.before)
    if count != 1:
        raise Stale(f"{mutation.name}: {mutation.file} has {count} times {mutation.before!r}")
    if mutation.before == mutation.after:
        raise Stale(f"{mutation.name}: it changes nothing")
    return text.replace(mutation.before, mutation.after)


def check(mutations: tuple[Mutation, ...], root: Path) -> list[str]:
    """What is wrong with the list itself."""
    faults = []
    for mutation in mutations:
        try:
            planted(mutation, (root / mutation.file).read_text())
        except (Stale, FileNotFoundError) as error:
            faults.append(str(error))
        faults += [f"{mutation.name}: no {test}" for test in mutation.tests if not (root / _file_of(test)).exists()]
    names = [mutation.name for mutation in mutations]
    return faults + [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]


def _file_of(test: str) -> str:
    return test.partition("::")[0]
