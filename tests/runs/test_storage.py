"""Files of a site, in its data folder alone and in a bucket on a real S3 server."""

import hashlib
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.models import Person
from config import environment
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from runs import bucket, storage
from runs.datasets import uploads
from runs.datasets.services import store_pieces, store_upload
from runs.models import Dataset, Run, Snapshot, Upload
from runs.snapshots import retention
from tests.jobs.requests import do, requested
from tests.servers import PrivateS3
from tests.web.api_client import body
from tests.web.browsing import as_, page
from web import health

pytestmark = pytest.mark.django_db
TEXT = b"All hands make light work.\n" * 400
DIGEST = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def hosted(s3: PrivateS3, settings: Any, data_folder: Path) -> Iterator[PrivateS3]:
    """Let the site use the bucket, under a prefix of this test's own."""
    settings.S3 = environment.bucket("MANYHANDS_S3", environ=s3.settings())
    settings.S3["prefix"] = uuid4().hex
    yield s3
    s3.trouble.unlink(missing_ok=True)


def written(path: Path, data: bytes = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def as_another_host() -> None:
    shutil.rmtree(storage.root())


def put(name: str, data: bytes = TEXT) -> Path:
    path = storage.root() / name
    with storage.workspace() as work:
        storage.put(written(work / "file", data), path)
    return path


def facts(organizer: Person) -> dict[str, Any]:
    return {"organizer": organizer, "title": "Proverbs", "licence": "CC0-1.0"}


def in_quick_retries() -> Any:
    bucket._opened.cache_clear()
    return patch.multiple(bucket, RETRY_S=1, QUICK_S=2, LONG_S=2)


class TestBucket:
    def test_another_host_reads_what_one_has_put(self, hosted: PrivateS3) -> None:
        path = put(f"runs/a/{DIGEST}.safetensors")
        as_another_host()
        assert storage.local(path).read_bytes() == TEXT
        assert storage.files(path.parent)[path.name].size == len(TEXT)

    def test_a_large_file_goes_and_comes_in_parts(self, hosted: PrivateS3) -> None:
        with patch.object(bucket, "PART_BYTES", 5 << 20):
            path = put("large", data := os.urandom(11 << 20))
            as_another_host()
            assert storage.local(path).read_bytes() == data

    def test_a_folder_comes_whole_or_as_chosen(self, hosted: PrivateS3) -> None:
        with storage.workspace() as work:
            for name in ("out/shards/one", "out/shards/two", "out/model/three"):
                written(work / name, name.encode())
            storage.put(work / "out", folder := storage.root() / "data")
        as_another_host()
        assert (storage.local(folder / "shards", lambda name: name == "two") / "two").read_bytes() == b"out/shards/two"
        assert not (folder / "shards" / "one").exists()
        storage.local(folder)
        assert (folder / "model" / "three").read_bytes() == b"out/model/three"

    def test_a_damaged_file_is_not_used(self, hosted: PrivateS3) -> None:
        path = put(f"runs/a/{DIGEST}.safetensors", b"other bytes")
        as_another_host()
        with pytest.raises(Problem, match="E472"):
            storage.local(path)
        assert not path.exists()

    def test_an_address_is_for_one_file_and_ranges(self, hosted: PrivateS3) -> None:
        url = storage.address(put("one.txt"), "GET")
        other = storage.address(put("two.txt"), "GET")
        assert url is not None
        assert other is not None
        request = urllib.request.Request(url, headers={"Range": "bytes=4-8"})
        with urllib.request.urlopen(request) as answer:
            assert (answer.status, answer.read()) == (206, TEXT[4:9])
            assert answer.headers["Content-Disposition"] == 'attachment; filename="one.txt"'
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url.replace("one.txt", "two.txt"))

    def test_a_job_deletes_what_is_discarded(self, hosted: PrivateS3) -> None:
        path = put("datasets/a/text")
        storage.discard(path.parent)
        assert requested() == [(Kind.DELETE_FILES, "datasets/a")]
        do(Kind.DELETE_FILES, "datasets/a")
        assert bucket.found("datasets/a") == []
        assert not path.exists()

    def test_the_longest_unused_files_leave_the_cache(self, hosted: PrivateS3, settings: Any) -> None:
        old, used, local = put("old"), put("used"), written(storage.root() / "not-in-the-bucket")
        settings.CACHE_BYTES = len(TEXT)
        for path in (old, local):
            os.utime(path, (time.time() - storage.USED_S - 60, path.stat().st_mtime))
        storage._trimmed_at[0] = -1e9
        storage._trim()
        assert [path.exists() for path in (old, used, local)] == [False, True, True]
        assert storage.local(old).read_bytes() == TEXT

    def test_what_another_host_has_deleted_leaves_the_cache(self, hosted: PrivateS3, organizer: Person) -> None:
        dataset = store_upload(**facts(organizer), filename="a.txt", size=len(TEXT), chunks=[TEXT])
        known, gone = (
            storage.text_path(dataset),
            written(storage.root() / "datasets" / uuid4().hex / "text"),
        )
        for path in (known, gone):
            os.utime(path.parent, (0, 0))
        storage._trimmed_at[0] = -1e9
        storage._trim()
        assert [path.exists() for path in (known, gone)] == [True, False]


class TestUploads:
    def test_a_text_is_in_the_bucket_before_its_row(self, hosted: PrivateS3, organizer: Person) -> None:
        dataset = store_upload(**facts(organizer), filename="a.txt", size=len(TEXT), chunks=[TEXT])
        as_another_host()
        assert storage.local(storage.text_path(dataset)).read_bytes() == TEXT

    def test_pieces_may_reach_several_hosts(self, hosted: PrivateS3, organizer: Person) -> None:
        upload = uploads.begin_upload(person=organizer, filename="a.txt", size=len(TEXT))
        for offset in range(0, len(TEXT), 3000):
            uploads.take_piece(upload=upload, offset=offset, piece=TEXT[offset : offset + 3000])
            as_another_host()
        dataset = store_pieces(**facts(organizer), upload=upload)
        assert (dataset.sha256, storage.text_path(dataset).read_bytes()) == (DIGEST, TEXT)

    def test_a_piece_sent_again_after_a_failure_may_be_shorter(self, hosted: PrivateS3, organizer: Person) -> None:
        upload = uploads.begin_upload(person=organizer, filename="a.txt", size=len(TEXT))
        uploads.take_piece(upload=upload, offset=0, piece=TEXT[:3000])
        Upload.objects.update(offset=0)  # as if the transaction had failed
        uploads.take_piece(upload=upload, offset=0, piece=TEXT[:1000])
        uploads.take_piece(upload=upload, offset=1000, piece=TEXT[1000:])
        assert store_pieces(**facts(organizer), upload=upload).sha256 == DIGEST

    def test_a_missing_piece_is_told(self, hosted: PrivateS3, organizer: Person) -> None:
        upload = uploads.begin_upload(person=organizer, filename="a.txt", size=len(TEXT))
        uploads.take_piece(upload=upload, offset=0, piece=TEXT)
        storage.remove(storage.upload_path(upload))
        with pytest.raises(Problem, match="E318"):
            store_pieces(**facts(organizer), upload=upload)
        assert not Dataset.objects.exists()


class TestTrouble:
    @pytest.mark.parametrize("trouble", ["503", "5"])
    def test_an_upload_is_told_and_may_be_tried_again(self, hosted: PrivateS3, organizer: Person, trouble: str) -> None:
        upload = uploads.begin_upload(person=organizer, filename="a.txt", size=len(TEXT))
        hosted.trouble.write_text(trouble)
        with in_quick_retries(), pytest.raises(Problem, match="E472"):
            uploads.take_piece(upload=upload, offset=0, piece=TEXT)
        hosted.trouble.unlink()
        upload.refresh_from_db()
        assert upload.offset == 0
        uploads.take_piece(upload=upload, offset=0, piece=TEXT)
        assert store_pieces(**facts(organizer), upload=upload).sha256 == DIGEST

    def test_a_key_that_may_not_write_is_told(self, hosted: PrivateS3, settings: Any, organizer: Person) -> None:
        settings.S3 |= {"config": environment.bucket("MANYHANDS_S3", environ=hosted.settings("reader"))["config"]}
        with pytest.raises(Problem, match=r"E472.*403 Forbidden"):
            store_upload(**facts(organizer), filename="a.txt", size=len(TEXT), chunks=[TEXT])
        assert not Dataset.objects.exists()
        found = health.check_bucket()
        assert (found.state, found.is_down, "403 Forbidden" in found.said) == (health.State.LOOK, False, True)

    def test_a_job_is_done_again(self, hosted: PrivateS3, run: Run) -> None:
        hosted.trouble.write_text("503")
        Dataset.objects.update(state=Dataset.State.UPLOADED)
        with in_quick_retries(), pytest.raises(Problem, match="E472"):
            do(Kind.PREPARE_DATASET, run.dataset.pk)
        assert Dataset.objects.get().state == Dataset.State.PREPARING
        assert health.check_bucket().state == health.State.LOOK

    def test_a_healthy_bucket_passes_the_check(self, hosted: PrivateS3, settings: Any) -> None:
        assert health.check_bucket().state == health.State.OK
        settings.DATA = settings.DATA / "another-host"
        assert "another key" in health.check_bucket().said
        settings.S3 = {}
        assert health.check_bucket().state == health.State.ABSENT


class TestPages:
    def test_a_download_is_sent_by_the_bucket(self, hosted: PrivateS3, run: Run, client: Client) -> None:
        Snapshot.objects.filter(run=run).update(file=DIGEST, state=Snapshot.State.VERIFIED)
        put(f"runs/{run.id.hex}/snapshots/{DIGEST}.safetensors")
        answer = client.get(f"/api/v1/runs/{run.slug}/states/0")
        assert (answer.status_code, answer["X-Sha256"], answer["Cache-Control"]) == (302, DIGEST, "no-store")
        assert answer["Location"].startswith(hosted.url)
        with urllib.request.urlopen(answer["Location"]) as sent:
            assert sent.read() == TEXT

    def test_a_form_says_that_a_text_could_not_be_stored(
        self, hosted: PrivateS3, settings: Any, run: Run, organizer: Person
    ) -> None:
        settings.S3 |= {"config": environment.bucket("MANYHANDS_S3", environ=hosted.settings("reader"))["config"]}
        Run.objects.update(state=Run.State.DRAFT)
        text = SimpleUploadedFile("words.txt", TEXT)
        address = f"/runs/{run.slug}/texts/"
        answer = as_(organizer).post(address, {"text": text, "licence": "CC0-1.0", "may_share": "on"})
        assert answer.status_code == 400, answer.content
        assert "E472" in page(answer)
        assert Dataset.objects.count() == 1

    def test_a_download_comes_from_the_disk_without_a_bucket(self, run: Run, client: Client) -> None:
        Snapshot.objects.filter(run=run).update(file=DIGEST, state=Snapshot.State.VERIFIED)
        written(storage.root() / f"runs/{run.id.hex}/snapshots/{DIGEST}.safetensors")
        assert body(client.get(f"/api/v1/runs/{run.slug}/states/0")) == TEXT

    def test_snapshots_without_a_row_leave_the_bucket(self, hosted: PrivateS3, run: Run) -> None:
        path = put(f"runs/{run.id.hex}/snapshots/{DIGEST}.safetensors")
        retention.thin_snapshots(run.pk)
        assert len(storage.files(path.parent)) == 1
        retention.thin_snapshots(run.pk, now=time.time() + retention.ASKED_FOR_S + 60)
        assert storage.files(path.parent) == {}
