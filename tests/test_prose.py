"""The lint of docstrings and commit subjects finds the faults it should find, and accepts plain sentences."""

from pathlib import Path

import pytest

from scripts.prose import docstrings, faults_of_docstring, faults_of_subject


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Whether the machine counts.", "Whether"),
        ("What pages show of a round.", "What"),
        ("It is.", "says nothing"),
        ("Drop slots that nobody waits for.", "nobody"),
    ],
)
def test_docstring_with_one_fault_is_named(text: str, named: str) -> None:
    (fault,) = faults_of_docstring(text)
    assert named in fault


@pytest.mark.parametrize("text", ["Return True if the machine counts.", "Whatever it holds is kept", "The NOBODY peer"])
def test_plain_docstring_passes(text: str) -> None:
    assert faults_of_docstring(text) == []


@pytest.mark.parametrize(
    ("subject", "faults"),
    [
        ("relay: Close idle links", 0),
        ("Tell what an experiment takes", 1),
        ("tests: Hold two mended things by a test each.", 2),
        ("Add " + "x" * 69, 1),
    ],
)
def test_subjects_are_judged_by_verb_length_and_end(subject: str, faults: int) -> None:
    assert len(faults_of_subject(subject)) == faults


def test_all_docstrings_of_a_module_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""One."""\nclass A:\n    """Two."""\n    def f(self):\n        """Three."""\n')
    assert [text for _, text in docstrings(module)] == ["One.", "Two.", "Three."]
