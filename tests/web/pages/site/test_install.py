"""Getting the agent: the page, the file, the lines, the notebook, the card on a run's page."""

import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from packaging.requirements import Requirement

from accounts.models import Person
from runs.models import Run
from tests.runs.factories import opened
from tests.web.browsing import as_, page

NAME = "manyhands-0.1.0-py3-none-any.whl"
CONTENT = bytes(range(256)) * 64
DIGEST = hashlib.sha256(CONTENT).hexdigest()
URL = f"http://testserver/download/{NAME}"
LINUX, MAC, WINDOWS = "X11; Linux x86_64", "Macintosh; Intel Mac OS X", "Windows NT 10.0; Win64"


@pytest.fixture
def wheel(settings: Any) -> Path:
    path = Path(settings.DOWNLOADS) / NAME
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content)


def cells(answer: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(answer.content)["cells"]
    return made


class TestTheFile:
    def test_it_comes_with_its_digest(self, wheel: Path) -> None:
        answer = Client().get(f"/download/{NAME}")
        assert body(answer) == CONTENT
        assert (answer["X-Sha256"], answer["ETag"]) == (DIGEST, f'"{DIGEST}"')
        assert answer["Content-Disposition"] == f'attachment; filename="{NAME}"'

    def test_a_download_goes_on_where_it_stopped(self, wheel: Path) -> None:
        answer = Client().get(f"/download/{NAME}", headers={"Range": "bytes=1000-"})
        assert (answer.status_code, body(answer)) == (206, CONTENT[1000:])

    def test_a_new_wheel_has_its_own_digest(self, wheel: Path) -> None:
        assert Client().get(f"/download/{NAME}")["X-Sha256"] == DIGEST
        newer = wheel.with_name("newer")
        newer.write_bytes(CONTENT[::-1])
        os.utime(newer, (1, 1))
        newer.replace(wheel)
        assert Client().get(f"/download/{NAME}")["X-Sha256"] == hashlib.sha256(CONTENT[::-1]).hexdigest()

    @pytest.mark.parametrize("name", ["wheel.stamp", "manyhands-0.0.9-py3-none-any.whl", "..%2Fdata%2Fkeys%2Fsite"])
    def test_nothing_else_is_served(self, wheel: Path, name: str, db: None) -> None:
        (wheel.parent / "wheel.stamp").write_text("x")
        assert Client().get(f"/download/{name}").status_code == 404

    def test_an_older_name_says_that_there_is_a_newer(self, wheel: Path, db: None) -> None:
        assert "E322" in page(Client().get("/download/manyhands-0.0.9-py3-none-any.whl"))


class TestThePage:
    def test_it_names_size_and_digest(self, wheel: Path, db: None) -> None:
        text = page(Client().get("/download/"))
        assert f'<a href="/download/{NAME}">{NAME}</a>' in text
        assert f"{DIGEST}</td>" in text
        assert "16.0 KB" in text

    def test_every_line_names_the_whole_address_and_digest(self, wheel: Path, client: Client, db: None) -> None:
        lines = client.get("/download/").context["install"]
        said = [lines.uv, *(system.pip for system in lines.systems)]
        assert [system.name for system in lines.systems] == ["Linux", "macOS", "Windows"]
        for line in said:
            wanted = Requirement(shlex.split(line)[-1])
            assert (wanted.name, wanted.extras, wanted.url) == ("manyhands", {"train"}, f"{URL}#sha256={DIGEST}")
        assert [system.torch for system in lines.systems] == [
            "~/manyhands/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu",
            "",
            "",
        ]

    @pytest.mark.parametrize(
        ("agent", "system"), [(LINUX, "Linux"), (MAC, "macOS"), (WINDOWS, "Windows"), ("", "Linux")]
    )
    def test_ones_own_system_is_open(self, wheel: Path, agent: str, system: str, db: None) -> None:
        text = page(Client().get("/download/", headers={"User-Agent": agent}))
        assert f'class="system" open> <summary>{system}</summary>' in text
        assert text.count(" open>") == 1

    def test_without_a_wheel_the_operator_learns_what_to_run(self, db: None, settings: Any) -> None:
        for exists in (False, True):
            answer = Client().get("/download/")
            assert answer.status_code == 404
            assert "E321" in page(answer)
            assert "<code>make setup</code>" in page(answer)
            Path(settings.DOWNLOADS).mkdir(exist_ok=exists)


class TestTheCard:
    def test_two_steps(self, wheel: Path, run: Run) -> None:
        text = page(Client().get("/runs/proverbs/"))
        assert f"manyhands[train] @ {URL}#sha256={DIGEST}" in text
        assert "<code>~/manyhands/bin/manyhands join http://testserver/runs/proverbs/</code>" in text
        assert "<code>manyhands join http://testserver/runs/proverbs/</code>" in text  # installed with uv
        assert 'href="/approve/"' in text
        assert 'href="/download/"' in text
        assert 'href="/runs/proverbs/notebook.ipynb"' in text
        assert "--token" not in text

    def test_one_line_comes_first_and_what_is_installed_before_it(self, wheel: Path, run: Run) -> None:
        text = page(Client().get("/runs/proverbs/"))
        assert text.index("manyhands join http://testserver/runs/") < text.index("uv tool install")
        assert text.index("uv tool install") < text.index("With pip instead")
        assert "&amp;&amp; manyhands join" in text
        windows = Client().get("/runs/proverbs/", headers={"User-Agent": "Mozilla/5.0 (Windows NT 10.0)"})
        assert "&amp;&amp; manyhands join" not in page(windows), "an older PowerShell does not know it"

    def test_windows_calls_it_by_its_place(self, wheel: Path, run: Run) -> None:
        text = page(Client().get("/runs/proverbs/"))
        there = "&amp; &quot;$HOME\\manyhands\\Scripts\\{}&quot;"
        assert f"{there.format('pip')} install" in text
        assert f"{there.format('manyhands')} join http://testserver/runs/proverbs/" in text

    def test_without_a_wheel_it_says_so(self, run: Run) -> None:
        text = page(Client().get("/runs/proverbs/"))
        assert "is not built on this site yet" in text
        assert "notebook.ipynb" not in text

    @pytest.mark.parametrize(
        ("host", "is_near"),
        [("127.0.0.1:8000", True), ("[::1]:8000", True), ("localhost", True), ("192.168.1.2", True), ("x.org", False)],
    )
    def test_a_rented_computer_cannot_reach_a_home(
        self, wheel: Path, run: Run, settings: Any, host: str, is_near: bool
    ) -> None:
        settings.ALLOWED_HOSTS = ["*"]
        text = page(Client().get("/runs/proverbs/", headers={"Host": host}))
        assert ("is a local address" in text) == is_near


class TestTheNotebook:
    def test_it_is_a_notebook_of_one_cell(self, wheel: Path, run: Run) -> None:
        answer = Client().get("/runs/proverbs/notebook.ipynb")
        assert answer["Content-Type"] == "application/x-ipynb+json"
        assert answer["Content-Disposition"] == 'attachment; filename="proverbs.ipynb"'
        made = json.loads(answer.content)
        assert set(made) == {"cells", "metadata", "nbformat", "nbformat_minor"}
        assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
        (cell,) = made["cells"]
        assert set(cell) == {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
        assert (cell["cell_type"], cell["execution_count"], cell["outputs"]) == ("code", None, [])

    def test_it_installs_from_here_and_joins(self, wheel: Path, run: Run) -> None:
        (cell,) = cells(Client().get("/runs/proverbs/notebook.ipynb"))
        lines = [line.rstrip("\n") for line in cell["source"] if not line.startswith("#")]
        assert lines == [
            f'%pip install --quiet "manyhands[train] @ {URL}#sha256={DIGEST}"',
            "!PYTHONUNBUFFERED=1 manyhands join http://testserver/runs/proverbs/",
        ]

    @pytest.mark.parametrize("breaks", ["\n", "\r", "\u2028", "\x0b", "\x85"])
    def test_a_title_stays_in_its_comment(self, wheel: Path, organizer: Person, breaks: str) -> None:
        opened(organizer, title=f"Proverbs{breaks}!rm -rf /")
        (cell,) = cells(Client().get("/runs/proverbs/notebook.ipynb"))
        code = [line for line in "".join(cell["source"]).splitlines() if not line.startswith("#")]
        assert [line.split()[0] for line in code] == ["%pip", "!PYTHONUNBUFFERED=1"]

    def test_who_may_not_see_the_run_gets_none(
        self, wheel: Path, run: Run, organizer: Person, stranger: Person
    ) -> None:
        Run.objects.update(visibility="private")
        path = "/runs/proverbs/notebook.ipynb"
        assert [as_(person).get(path).status_code for person in (organizer, stranger)] == [200, 404]
        assert Client().get(path).status_code == 404

    def test_without_a_wheel_it_says_so(self, run: Run) -> None:
        answer = Client().get("/runs/proverbs/notebook.ipynb")
        assert answer.status_code == 404
        assert "E321" in page(answer)
