"""Site pages: help, health, errors, theme, language and the agent's download."""

import hashlib
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from packaging.requirements import Requirement
from typer.testing import CliRunner

from accounts.models import Person
from peer_agent.cli import app
from runs.models import Run
from tests.runs.factories import Owned, opened
from tests.web.browsing import as_, page
from web.http.error_responses import broken
from web.pages.site.about import TOPICS, Topic

NAME = "manyhands-0.1.0-py3-none-any.whl"
CONTENT = bytes(range(256)) * 64
DIGEST = hashlib.sha256(CONTENT).hexdigest()
URL = f"http://testserver/download/{NAME}"
LINUX, MAC, WINDOWS = "X11; Linux x86_64", "Macintosh; Intel Mac OS X", "Windows NT 10.0; Win64"


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.slug)
def test_every_question_has_its_page_and_leads_to_the_others(client: Client, db: None, topic: Topic) -> None:
    page = client.get(reverse("web:help_page", args=[topic.slug])).content.decode()
    assert f"<h1>{topic.question}</h1>" in page
    for other in TOPICS:
        assert (reverse("web:help_page", args=[other.slug]) in page) or other == topic


def test_an_unknown_question_is_not_there(client: Client, db: None) -> None:
    assert client.get("/help/wealth/").status_code == 404


@pytest.mark.parametrize(
    "path", ["/", "/runs/new/", "/help/", "/nothing/", *(f"/help/{topic.slug}/" for topic in TOPICS)]
)
def test_the_foot_of_every_page_leads_somewhere(db: None, operator: Person, settings: Any, path: str) -> None:
    wheel = Path(settings.DOWNLOADS) / "manyhands-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"a wheel")
    client = Client()
    client.force_login(operator)
    page = client.get(path).content.decode()
    links = set(re.findall(r'href="(/[^"]*)"', page))
    assert {"/help/privacy/", "/help/credit/", "/help/stopping/", "/account/", "/admin/"} <= links
    for link in (link for link in links if not link.startswith("/static/")):
        assert client.get(link).status_code == 200, link


def test_the_page_of_a_broken_site_asks_the_database_nothing(rf: RequestFactory) -> None:
    """Reading `request.user` would query the database and fail the test."""
    request = rf.get("/runs/")
    request.user = SimpleLazyObject(Person.objects.get)  # type: ignore[assignment]
    answer = broken(request)
    assert answer.status_code == 500
    assert "Something went wrong" in answer.content.decode()


@pytest.mark.parametrize(
    ("path", "headline", "code"),
    [("/nothing/", "This page has wandered off", None), ("/runs/nothing/", "Run not found", "E305")],
)
def test_a_missing_page_leads_on(client: Client, db: None, path: str, headline: str, code: str | None) -> None:
    """Only numbered errors have a number to quote."""
    text = page(client.get(path))
    assert f"<h1>{headline}</h1>" in text
    assert 'action="/" class="search"' in text
    assert f'href="/login/?next={path}"' in text
    assert re.findall(r'Error code: <span class="figure">(.*?)<', text) == ([code] if code else [])


def test_only_operators_are_shown_their_door(client: Client, db: None, organizer: Person) -> None:
    client.force_login(organizer)
    assert "/admin/" not in client.get("/").content.decode()


def test_the_machines_page_leads_to_how_a_machine_forgets(client: Client, volunteer: Person, laptop: Owned) -> None:
    client.force_login(volunteer)
    link = re.search(r'href="([^"]+)#forget"', client.get("/machines/").content.decode())
    assert link is not None
    assert '<code id="forget">manyhands forget http://testserver</code>' in client.get(link[1]).content.decode()
    assert CliRunner().invoke(app, ["forget", "--help"]).exit_code == 0, "there is such a command"


def test_what_an_organizer_can_do_is_said(client: Client, db: None) -> None:
    said = client.get("/help/organizers/").content.decode()
    for words in ("members", "remove people", "return it to a draft", "Hugging Face"):
        assert words in said
    assert "--publish" in client.get("/help/privacy/").content.decode()


def test_it_is_alive(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}


def test_a_broken_page_says_that_work_is_safe(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("runs.selectors.found_runs", broken)
    monkeypatch.setattr("runs.selectors.run_lines", broken)
    client.raise_request_exception = False
    for path in ("/", "/api/v1/runs"):
        answer = client.get(path)
        assert answer.status_code == 500
        assert "unforeseen" not in page(answer)
        assert "safe" in page(answer)
        incident = re.search(r"500-([0-9a-f]{8})", page(answer))
        assert incident is not None
        (told,) = (record for record in caplog.records if incident[1] in record.getMessage())
        assert told.exc_info is not None
        assert str(told.exc_info[1]) == "unforeseen"


def test_it_is_there_in_debug_mode_alone(client: Client, db: None, settings: Any) -> None:
    assert client.get("/styleguide/").status_code == 404
    settings.DEBUG = True
    shown = page(client.get("/styleguide/"))
    for part in (
        "Colour roles",
        "accent",
        "41,210 samples",
        "Publish run",
        "E303",
        "This field is required.",
        "hero, paused",
    ):
        assert part in shown


def shown(client: Client) -> str:
    return client.get("/help/").content.decode()


def test_it_follows_the_system_until_one_is_chosen(client: Client, db: None) -> None:
    assert "data-theme" not in shown(client)
    assert 'content="light dark"' in shown(client)
    answer = client.post("/theme/", {"theme": "dark", "back": "/help/"})
    assert answer["Location"] == "/help/"
    assert '<html lang="en" dir="ltr" data-theme="dark">' in shown(client)
    assert 'content="dark"' in shown(client)
    client.post("/theme/", {"theme": "", "back": "/help/"})
    assert "data-theme" not in shown(client)


def test_the_browsers_language_is_spoken_until_another_is_chosen(client: Client, db: None) -> None:
    bengali = client.get("/help/", headers={"Accept-Language": "bn-BD,bn;q=0.9"})
    assert '<html lang="bn" dir="ltr">' in bengali.content.decode()
    assert "Accept-Language" in bengali["Vary"]
    assert '<html lang="en"' in shown(client)
    assert client.post("/language/", {"language": "bn", "back": "/help/"})["Location"] == "/help/"
    assert '<html lang="bn"' in shown(client)
    assert "django_language" not in client.post("/theme/", {"theme": "dark"}).cookies
    answer = client.post("/language/", {"language": "xx"})
    assert answer.cookies["django_language"].value == "", "it is no language here, and is not kept"
    assert '<html lang="en"' in shown(client)


def test_it_needs_no_form_of_ours(db: None) -> None:
    """The menu is on pages that are the same for every reader, so it has no session token."""
    assert Client(enforce_csrf_checks=True).post("/theme/", {"theme": "light"}).status_code == 302


ELSEWHERE = ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", "help", "web:help", ""]


@pytest.mark.parametrize("to", ELSEWHERE)
def test_it_leads_nowhere_else(client: Client, db: None, to: str) -> None:
    assert client.post("/theme/", {"theme": "dark", "back": to})["Location"] == "/"


@pytest.mark.parametrize("theme", ["sepia", '"><script>', "x" * 5000])
def test_there_are_two(client: Client, db: None, theme: str) -> None:
    client.post("/theme/", {"theme": theme})
    assert "data-theme" not in shown(client)
    client.cookies["theme"] = theme
    assert "data-theme" not in shown(client)


def test_theme_switch_is_absent_where_a_secret_is_shown_once(volunteer: Person) -> None:
    client = as_(volunteer)
    assert 'action="/theme/"' in client.get("/machines/").content.decode()
    assert 'action="/theme/"' not in client.post("/machines/").content.decode()


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

    def test_its_signature_lies_beside_it(self, wheel: Path) -> None:
        name = f"{NAME}.sig"
        assert Client().get(f"/download/{name}").status_code == 404
        assert Client().get("/api/v1/agent").json()["signature"] is None
        wheel.with_name(name).write_bytes(b"signed")
        assert Client().get(f"/download/{name}").content == b"signed"
        assert Client().get("/api/v1/agent").json()["signature"] == f"http://testserver/download/{name}"

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
        assert "17 kB" in text

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


class TestBundles:
    """Bundles are files that an operator puts beside the wheel. Setup does not build them."""

    @pytest.fixture
    def bundles(self, wheel: Path) -> list[str]:
        names = [f"manyhands-0.1.0-{name}" for name in ("linux-x86_64.tar.gz", "windows-x86_64.zip")]
        for name in (*names, "manyhands-0.0.9-macos-arm64.tar.gz", "manyhands-0.1.0-macos-arm64.tar.gz.part"):
            (wheel.parent / name).write_bytes(name.encode() * 100)
        return names

    def test_the_one_for_this_system_comes_before_the_lines(self, bundles: list[str], db: None) -> None:
        text = page(Client().get("/download/", headers={"User-Agent": WINDOWS}))
        offer = f'href="/download/{bundles[1]}" download>Download for Windows (4 kB)'
        assert text.index(offer) < text.index("uv tool install")
        assert "Run anyway" in text
        assert f'href="/download/{bundles[0]}" download>Linux' in text
        assert text.count('class="digest"') == 3

    def test_a_system_without_one_sees_the_lines_alone(self, bundles: list[str], db: None) -> None:
        text = page(Client().get("/download/", headers={"User-Agent": MAC}))
        assert "Paste this line into a terminal" in text
        assert "Download for" not in text

    @pytest.mark.parametrize(("index", "kind"), [(0, "application/gzip"), (1, "application/zip")])
    def test_the_file_comes_with_its_digest(self, bundles: list[str], index: int, kind: str, db: None) -> None:
        answer = Client().get(f"/download/{bundles[index]}")
        assert answer["Content-Type"] == kind
        assert answer["X-Sha256"] == hashlib.sha256(body(answer)).hexdigest()

    def test_an_older_bundle_is_not_offered(self, bundles: list[str], db: None) -> None:
        for name in ("manyhands-0.0.9-macos-arm64.tar.gz", "manyhands-0.1.0-macos-arm64.tar.gz.part"):
            assert Client().get(f"/download/{name}").status_code == 404


class TestTheCard:
    def test_two_steps(self, wheel: Path, run: Run) -> None:
        text = page(Client().get("/runs/proverbs/"))
        assert f"manyhands[train] @ {URL}#sha256={DIGEST}" in text
        assert "<code>~/manyhands/bin/manyhands join http://testserver/runs/proverbs/</code>" in text
        assert "<code>manyhands join http://testserver/runs/proverbs/</code>" in text  # the agent is installed with uv
        assert 'href="/approve/"' in text
        assert 'href="/download/"' in text
        assert 'href="/runs/proverbs/notebook.ipynb"' in text
        assert "--token" not in text

    def test_one_line_comes_first_and_what_is_installed_before_it(self, wheel: Path, run: Run) -> None:
        text = page(Client().get("/runs/proverbs/"))
        assert text.count("uv tool install") == 1
        assert text.index("uv tool install") < text.index("<code>manyhands join http://testserver/runs/")
        assert text.index("uv tool install") < text.index("With pip instead")
        assert "&amp;&amp; <span>manyhands join" in text
        windows = Client().get("/runs/proverbs/", headers={"User-Agent": "Mozilla/5.0 (Windows NT 10.0)"})
        assert "&amp;&amp; <span>manyhands join" not in page(windows), "an older PowerShell does not know it"

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
        assert ("Colab and Kaggle need this site at a public address." in text) == is_near
        assert ("A notebook for Colab or Kaggle" in text) is not is_near


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

    def test_without_a_wheel_it_says_so(self, run: Run) -> None:
        answer = Client().get("/runs/proverbs/notebook.ipynb")
        assert answer.status_code == 404
        assert "E321" in page(answer)
