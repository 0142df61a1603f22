"""File uploads, whole or in pieces. The site knows a file's length before it reads a single byte.

An upload in pieces resumes at the offset in its row. A single transaction writes a piece to disk and the new offset to
the row.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.models import Person
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.recipes import KINDS
from runs import bucket, quotas, storage
from runs.models import Dataset, Upload
from runs.storage import MEGABYTE, link, upload_path

PIECE_BYTES = MEGABYTE  # most bytes per request
KEPT = timedelta(days=1)
A_PERSON = 4  # concurrent uploads per person; a fifth replaces the one idle longest
FORM_ALLOWANCE = MEGABYTE  # for the form's other fields


def is_text(filename: str) -> bool:
    """Return True if the file counts as text, because no recipe expects a special format for its suffix."""
    materials = [kind.prepares.material for kind in KINDS.values()]
    brought = [*materials, *(material.adapts for material in materials if material.adapts is not None)]
    suffixes = {suffix for material in brought for suffix in material.suffixes}
    return not filename.lower().endswith(tuple(suffixes))


def length_fault(content_length: str | None, *, limit: int, allowance: int = 0) -> Fault | None:
    """Return the reason to reject a body of this length without reading it, or None.

    The reason is E311 (no length) or E304 (too long). `limit` applies to the file; `allowance` covers the rest of the
    body.
    """
    if content_length is None or not content_length.isdecimal():
        return Fault.of("E311")
    if int(content_length) > limit + allowance:
        return too_long(int(content_length), limit)
    return None


def too_long(size: int, limit: int) -> Fault:
    """Return error E304 with sizes in whole megabytes. The file's size is rounded up, so that it exceeds the limit."""
    return Fault.of("E304", size=f"{-(-size // MEGABYTE):,}", limit=f"{limit // MEGABYTE:,}")


def upload_limit() -> int:
    return int(settings.UPLOAD_LIMIT_MB) * MEGABYTE


def write_file(chunks: Iterable[bytes], target: Path, *, size: int) -> str:
    """Write a file of up to `size` bytes and return its SHA-256. Raises Problem E304 if there are more bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    written = 0
    with target.open("wb") as file:
        for chunk in chunks:
            written += len(chunk)
            if written > size:
                raise Problem(too_long(written, size))
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def begin_upload(*, person: Person, filename: str, size: int) -> Upload:
    """Reserve disk space for a text of the announced size, before any byte is sent.

    Raises Problem E303 if the size is 0, E304 if it is above the site's limit, and E365 if it exceeds the person's
    storage quota.
    """
    if size <= 0:
        raise Problem.of("E303")
    if size > upload_limit():
        raise Problem(too_long(size, upload_limit()))
    forget_stale()
    with transaction.atomic():
        quotas.held(person)
        given_up = list(person.uploads.order_by("-touched_at")[A_PERSON - 1 :])
        quotas.require_disk(person, size, given_up=sum(old.size for old in given_up))
        upload = Upload.objects.create(person=person, filename=last_part(filename), size=size)
    for old in given_up:
        forget_upload(old)
    path = upload_path(upload)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not bucket.is_on():
        path.touch()
    return upload


def last_part(filename: str) -> str:
    """Return a file name without folders or unprintable characters."""
    name = filename.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(letter for letter in name if letter.isprintable())[-200:] or "text.txt"


def upload_of(person: Person, upload_id: UUID) -> Upload:
    """Return one of this person's uploads. Raises Problem E318 if there is no such upload."""
    upload = person.uploads.filter(pk=upload_id, touched_at__gt=timezone.now() - KEPT).first()
    if upload is None:
        raise Problem.of("E318")
    return upload


def take_piece(*, upload: Upload, offset: int, piece: bytes) -> Upload:
    """Append a piece to an upload.

    A site with a bucket stores each piece there as a file, because another server may receive the next one. Raises
    Problem E318 if the upload is gone, E319 if the piece does not continue it, and E472 if the bucket cannot be used.
    """
    end = offset + len(piece)
    if bucket.is_on():
        _require_next(Upload.objects.filter(pk=upload.pk).first(), offset, end)
        with storage.workspace() as work:
            (work / "piece").write_bytes(piece)
            storage.put(work / "piece", upload_path(upload) / f"{offset:018}-{end:018}")
    with transaction.atomic():
        now = _require_next(Upload.objects.select_for_update().filter(pk=upload.pk).first(), offset, end)
        if not bucket.is_on():
            _write(upload_path(now), offset, piece)
        now.offset, now.touched_at = end, timezone.now()
        now.save(update_fields=["offset", "touched_at"])
    return now


def _require_next(now: Upload | None, offset: int, end: int) -> Upload:
    """Return the upload. Raises Problem E318 if it is gone, or E319 if bytes `offset` to `end` do not continue it."""
    if now is None:
        raise Problem.of("E318")
    if offset != now.offset:
        raise Problem.of("E319", offset=now.offset, given=offset)
    if end > now.size:
        raise Problem.of("E319", offset=now.size, given=end)
    return now


def _write(path: Path, offset: int, piece: bytes) -> None:
    """Write a piece at its offset and truncate the file after it. Raises Problem E318 if the file is gone."""
    try:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(piece)
            file.truncate()
    except FileNotFoundError as error:
        raise Problem.of("E318") from error


def keep_upload(*, upload: Upload, dataset: Dataset, target: Path) -> None:
    """Move a complete upload to `target`, as the file of a dataset, and save the dataset.

    Raises Problem E318 if pieces are missing, and E472 if the bucket cannot be used.
    """
    complete = Upload.objects.filter(pk=upload.pk, offset=F("size"))
    if not complete.exists():
        raise Problem.of("E318")
    if bucket.is_on():
        _join(storage.local(upload_path(upload)), target, upload.size)
        storage.keep(target)
    else:
        link(upload_path(upload), target)
    with target.open("rb") as file:
        dataset.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    with transaction.atomic():
        if complete.select_for_update().first() is None:
            raise Problem.of("E318")
        dataset.save(force_insert=True)
        transaction.on_commit(lambda: forget_upload(upload))


def _join(folder: Path, target: Path, size: int) -> None:
    """Write the pieces in a folder to one file. A piece that was sent twice may overlap others.

    Raises Problem E318 if any bytes are missing.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with target.open("wb") as file:
        for path in sorted(folder.glob("*")):
            begin, end = map(int, path.name.split("-"))
            if begin > done:
                break
            file.seek(begin)
            file.write(path.read_bytes())
            done = max(done, end)
    if done != size:
        raise Problem.of("E318")


def forget_upload(upload: Upload) -> None:
    storage.discard(upload_path(upload))
    Upload.objects.filter(pk=upload.pk).delete()


def forget_stale(now: datetime | None = None) -> int:
    """Delete uploads that have been idle for a day, and return how many there were."""
    stale = list(Upload.objects.filter(touched_at__lte=(now or timezone.now()) - KEPT))
    for upload in stale:
        forget_upload(upload)
    return len(stale)
