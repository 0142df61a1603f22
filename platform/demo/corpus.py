"""English text that every CPython carries: the language reference and the docstrings of the standard library."""

import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

LICENCE = "PSF-2.0"
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__phello__"}
SHORTEST = 80  # characters; shorter docstrings say little


def python_text() -> str:
    """About two megabytes: the same on every machine with the same Python."""
    return "\n\n".join([*_reference(), *_docstrings()])


def reference_text() -> str:
    """The part of it that is about the language, half a megabyte."""
    return "\n\n".join(_reference())


def docstring_text() -> str:
    """The part of it that is about the library."""
    return "\n\n".join(_docstrings())


def _reference() -> Iterator[str]:
    for name in sorted(topics.topics):
        yield inspect.cleandoc(topics.topics[name])


def _docstrings() -> Iterator[str]:
    seen: set[str] = set()
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(root).parts):
            for text in _of_file(path):
                if len(text) >= SHORTEST and text not in seen:
                    seen.add(text)
                    yield text


def _of_file(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in other people's sources
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text
