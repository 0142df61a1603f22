"""The demo's training data, and a small recipe for each kind of training, as form values.

The text ships with every CPython. The images are handwritten digits (digits/LICENCE.md).
"""

import ast
import gzip
import inspect
import io
import sysconfig
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

from PIL import Image

LICENCE = "PSF-2.0"
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__phello__"}
SHORTEST = 80  # characters; shorter docstrings say little
DIGITS_LICENCE = "CC BY 4.0"
DATA = Path(__file__).parent / "digits" / "digits.csv.gz"
SIDE, BRIGHTEST = 8, 16


def digits_tar() -> bytes:
    """Return a tar archive of 1,797 images of 8 by 8 pixels. Its bytes are always the same."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, line in enumerate(gzip.decompress(DATA.read_bytes()).decode().splitlines()):
            *pixels, digit = (int(float(value)) for value in line.split(","))
            content = _png(pixels)
            entry = tarfile.TarInfo(f"digits/{digit}/{number:04}.png")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _png(pixels: list[int]) -> bytes:
    image = Image.frombytes("L", (SIDE, SIDE), bytes(value * 255 // BRIGHTEST for value in pixels))
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def python_text() -> str:
    """Return about two megabytes of text, identical on every machine with the same Python version."""
    return "\n\n".join([*_reference(), *_docstrings()])


def reference_text() -> str:
    """Return half a megabyte of text about the Python language."""
    return "\n\n".join(_reference())


def docstring_text() -> str:
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
        warnings.simplefilter("ignore")  # warnings about escape sequences in the sources
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


class Material(NamedTuple):
    """A file to upload. `words` describes its content."""

    name: str
    content: Callable[[], bytes]
    licence: str
    words: str


TEXT = Material("python.txt", lambda: python_text().encode(), LICENCE, "English: what Python says about itself")
REFERENCE = Material("reference.txt", lambda: reference_text().encode(), LICENCE, "English: what Python is, by itself")
DOCSTRINGS = Material(
    "docstrings.txt", lambda: docstring_text().encode(), LICENCE, "English: what Python's library is for"
)
DIGITS = Material("digits.tar", digits_tar, DIGITS_LICENCE, "images: handwritten digits")


class Small(NamedTuple):
    """A recipe that makes visible progress within minutes, with its training data.

    `fields` contains the values that differ from the form's defaults.
    """

    title: str
    purpose: str
    fields: dict[str, str]
    learning_rate: float
    in_few_steps: float  # learning rate for a short run, which tolerates larger steps
    material: Material = TEXT
    adapts: "Small | None" = None  # a causal language model trained first, which this recipe then adapts


BASE = Small(
    title="A small model of what Python is",
    purpose="A tiny model learning to write like Python's reference, to be adapted to its library.",
    fields={"family": "llama", "width": "96", "kv_heads": "2", "target_batch": "64"},
    learning_rate=0.03,
    in_few_steps=0.03,
    material=REFERENCE,
)
RECIPES: dict[str, Small] = {
    "causal_lm": Small(
        title="A small model of Python's own words",
        purpose="A tiny model learning to write like Python's own documentation.",
        fields={"width": "96", "vocab": "4096", "target_batch": "64"},
        learning_rate=0.02,
        in_few_steps=0.03,
    ),
    "masked_lm": Small(
        title="A small reader of Python's own words",
        purpose="A tiny model learning to fill in hidden words in Python's documentation.",
        fields={
            "beta2": "0.98",
            "decay": "cosine",
            "final_ratio": "0.1",
            "layers": "2",
            "width": "96",
            "embedding": "48",
            "vocab": "2048",
            "target_batch": "64",
        },
        learning_rate=0.01,
        in_few_steps=0.02,
    ),
    "finetune_lora": Small(
        title="A small model that learns Python's library",
        purpose="Adapters that teach a model of Python's reference to write like the library's documentation.",
        fields={"epsilon": "1e-6", "matrices": "all", "context": "64", "target_batch": "64"},
        learning_rate=0.003,
        in_few_steps=0.005,
        material=DOCSTRINGS,
        adapts=BASE,
    ),
    "image_classification": Small(
        title="A small reader of handwritten digits",
        purpose="A tiny model learning to recognize handwritten digits, from 1,797 images.",
        fields={
            "epsilon": "1e-6",
            "final_ratio": "0.1",
            "family": "resnet10",
            "width": "16",
            "shift": "0.1",
            "target_batch": "128",
            "micro_batch": "16",
        },
        learning_rate=0.1,
        in_few_steps=0.1,
        material=DIGITS,
    ),
    "image_ssl": Small(
        title="A small eye for handwritten digits",
        purpose="A tiny model learning to tell handwritten digits apart without labels, from 1,797 images.",
        fields={
            "final_ratio": "0.1",
            "family": "resnet10",
            "width": "16",
            "large_least": "0.4",
            "small": "2",
            "small_least": "0.15",
            "small_most": "0.4",
            "flip": "0",
            "strength": "0.4",
            "grey": "0",
            "blur": "0.2",
            "hidden": "128",
            "projection": "32",
            "prototypes": "30",
            "frozen_steps": "5",
            "target_batch": "128",
            "micro_batch": "32",
        },
        learning_rate=2.4,
        in_few_steps=5.0,
        material=DIGITS,
    ),
}
