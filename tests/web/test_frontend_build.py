"""The built front end: pages load it if it is built, and are complete without it."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from accounts.models import Person
from runs.models import Run
from tests.runs.factories import Owned, committed
from web.templatetags import built
from web.templatetags.built import Entry, built_entry

MOST_BYTES = 60_000  # compressed size of the scripts of a run's page
MOST_UPLOAD_BYTES = 20_500  # compressed size of the script of a form


def manifest(folder: Path, file: str) -> None:
    folder.mkdir(exist_ok=True)
    content = {"src/run.ts": {"file": file, "css": ["assets/run.css"], "isEntry": True}}
    (folder / "manifest.json").write_text(json.dumps(content))


def test_nothing_was_built(tmp_path: Path) -> None:
    assert built_entry("src/run.ts", tmp_path) is None


def test_a_new_build_is_seen(tmp_path: Path) -> None:
    manifest(tmp_path, "assets/one.js")
    os.utime(tmp_path / "manifest.json", (1, 1))
    assert built_entry("src/run.ts", tmp_path) == Entry("built/assets/one.js", ("built/assets/run.css",))
    manifest(tmp_path, "assets/two.js")
    assert built_entry("src/run.ts", tmp_path) == Entry("built/assets/two.js", ("built/assets/run.css",))
    assert built_entry("src/other.ts", tmp_path) is None


def test_the_page_stands_complete_without_a_build(
    client: Client, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(run, (laptop.machine, 4), loss=6.5)
    monkeypatch.setattr("web.templatetags.built.built_entry", lambda _: None)
    text = client.get(f"/runs/{run.slug}/").content.decode()
    assert "<script" not in text
    for words in ("6.50", "<svg", "Teo", "Step 1 of 100", "No activity yet."):
        assert words in text


def packed_bytes(page: str) -> int:
    """Return the compressed size of a page's built scripts.

    The page preloads what its scripts import from one another, so there is no need for a second round trip.
    """
    scripts = re.findall(r'<script type="module" src="/static/built/([^"]+)"></script>', page)
    shared = set(re.findall(r'<link rel="modulepreload" href="/static/built/([^"]+)">', page))
    parts = [(built.FOLDER / script).read_bytes() for script in (*scripts, *shared)]
    loaded = {name for part in parts for name in re.findall(rb"(?:\bfrom|\bimport)\s*\(?[\"'`]\./([^\"'`]+)", part)}
    assert {f"assets/{name.decode()}" for name in loaded} == shared
    return sum(len(gzip.compress(part)) for part in parts)


def test_the_built_page_has_its_script_and_it_is_small(client: Client, run: Run) -> None:
    """This test needs a front end built by `make setup`."""
    assert 10_000 < packed_bytes(client.get(f"/runs/{run.slug}/").content.decode()) <= MOST_BYTES


def test_a_form_that_uploads_has_its_script_and_it_is_small(
    client: Client, organizer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(organizer)
    assert 10_000 < packed_bytes(client.get("/runs/new/").content.decode()) <= MOST_UPLOAD_BYTES
    monkeypatch.setattr("web.templatetags.built.built_entry", lambda _: None)
    page = client.get("/runs/new/").content.decode()
    assert "<script" not in page
    assert 'type="file" name="text"' in page


def test_the_style_of_all_pages_is_named_after_what_is_in_it(client: Client, run: Run) -> None:
    found = None
    for path in ("/", f"/runs/{run.slug}/embed/"):
        style = r'<link rel="stylesheet" href="/static/(built/assets/manyhands-[\w-]{8}\.css)">'
        found = re.search(style, page_at(client, path))
        assert found is not None
    assert found is not None
    style_sheet = built.FOLDER.parent / found[1]
    packed = style_sheet.with_name(f"{style_sheet.name}.gz")
    assert gzip.decompress(packed.read_bytes()) == style_sheet.read_bytes()


def page_at(client: Client, path: str) -> str:
    return client.get(path).content.decode()


def test_without_a_build_it_is_the_source(client: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.templatetags.built.built_entry", lambda _: None)
    assert 'href="/static/manyhands.css"' in page_at(client, "/")


@pytest.mark.parametrize(
    ("url", "is_immutable"),
    [
        ("/static/built/assets/run-DHxwlN2q.js", True),
        ("/static/built/assets/manyhands-D_-sIrqz.css", True),
        ("/static/built/manifest.json", False),
        ("/static/manyhands.css", False),
        ("/static/hand.svg", False),
    ],
)
def test_what_is_named_after_its_content_is_kept_for_good(url: str, is_immutable: bool) -> None:
    assert bool(re.match(settings.WHITENOISE_IMMUTABLE_FILE_TEST, url)) == is_immutable
