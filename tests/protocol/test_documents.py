"""The generated documentation pages match the code."""

import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from peer_agent.protocol.messages import AnyMessage
from scripts import generate_docs


def test_the_pages_are_current() -> None:
    assert generate_docs.main(["--check"]) == 0


def test_a_page_that_is_out_of_date_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(generate_docs.ROOT / "scripts" / "setup.py", tmp_path / "scripts")
    monkeypatch.setattr(generate_docs, "ROOT", tmp_path)
    assert generate_docs.main(["--check"]) == 1
    assert generate_docs.main([]) == 0
    assert generate_docs.main(["--check"]) == 0
    page = tmp_path / "docs" / "errors.md"
    page.write_text(page.read_text().replace("E101", "E199"))
    capsys.readouterr()
    assert generate_docs.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/errors.md is out of date. Run: python -m scripts.generate_docs\n"


def test_every_message_has_its_entry() -> None:
    page = generate_docs.protocol_page()
    assert [kind.__name__ for kind in get_args(AnyMessage) if f"#### {kind.__name__}\n" not in page] == []


def test_complaints_of_the_setup_script_are_listed() -> None:
    assert {f"E90{i}" for i in range(1, 10)} <= set(generate_docs.setup_errors())


def test_every_part_that_is_linked_is_described() -> None:
    page = generate_docs.protocol_page()
    described = {title.lower() for title in re.findall(r"^#+ (\w+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= described
