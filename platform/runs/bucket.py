"""The S3 bucket that stores the site's files, if MANYHANDS_S3 names one (decision 41).

A key is a file's path in the storage folder. Only this module imports obstore, and only on a site with a bucket.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from peer_agent.protocol.errors import Problem, codes

PART_BYTES = 16 << 20  # S3 allows 10,000 parts, so a file may have 160 GB
PARTS_AT_ONCE = 2
QUICK_S, LONG_S, CHECK_S = 10, 120, 1  # timeouts of one request in seconds; LONG_S is for a part of a large file
RETRY_S = 10  # a failed request is retried for this long; after that, its job is retried later
URL_S = 300  # how long an address for downloading is valid
CHECKED, KEY = "check", "site-key"  # what the site's self-check writes

log = logging.getLogger(__name__)


class Object(NamedTuple):
    """A file in the bucket. `at`: when it was written, as a timestamp."""

    key: str
    size: int
    at: float


def is_on() -> bool:
    return bool(settings.S3)


def upload(path: Path, key: str) -> None:
    """Store a file, completely or not at all. Raises Problem E472 if the bucket cannot be used."""
    import obstore

    name = key.rpartition("/")[2]
    about = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": "application/octet-stream"}
    with _in_words():
        obstore.put(_store(LONG_S), key, path, attributes=about, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)


def download(key: str, path: Path) -> str:
    """Write a stored file to `path` and return its SHA-256.

    Raises FileNotFoundError if the bucket lacks the file, and Problem E472 if the bucket cannot be used.
    """
    import obstore

    digest = hashlib.sha256()
    with _in_words(), path.open("wb") as file:
        size = obstore.head(_store(QUICK_S), key)["size"]
        for start in range(0, size, PART_BYTES):
            part = obstore.get_range(_store(LONG_S), key, start=start, end=min(size, start + PART_BYTES))
            digest.update(part)
            file.write(part)
    return digest.hexdigest()


def found(key: str) -> list[Object]:
    """List the file `key`, or all files in the folder `key`. Raises Problem E472 if the bucket cannot be used."""
    import obstore

    with _in_words():
        listed = [each for page in obstore.list(_store(QUICK_S), key or None) for each in page]
        if not listed and key:
            try:
                listed = [obstore.head(_store(QUICK_S), key)]
            except FileNotFoundError:
                return []
    return [Object(each["path"], each["size"], each["last_modified"].timestamp()) for each in listed]


def delete(key: str) -> None:
    """Delete a file, or all files in a folder. Raises Problem E472 if the bucket cannot be used."""
    import obstore

    if keys := [each.key for each in found(key)]:
        with _in_words():
            obstore.delete(_store(QUICK_S), keys)


def address(key: str, method: str) -> str:
    """Return a signed URL at which anyone may request this file for `URL_S` seconds. This contacts no server."""
    import obstore

    with _in_words():
        return obstore.sign(_store(QUICK_S), "HEAD" if method == "HEAD" else "GET", key, timedelta(seconds=URL_S))


def check(key: bytes) -> bool:
    """Check that the bucket can be written to. Return True if it belongs to the site with the public key `key`.

    A bucket belongs to the first site that checked it. Raises Problem E472 if the bucket cannot be used.
    """
    import obstore

    with _in_words():
        obstore.put(_store(CHECK_S), CHECKED, b"")
        try:
            return bool(obstore.get(_store(CHECK_S), KEY).bytes().to_bytes() == key)
        except FileNotFoundError:
            obstore.put(_store(CHECK_S), KEY, key)
            return True


@lru_cache(maxsize=3)
def _opened(limit_s: int, bucket: str, prefix: str, config: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import S3Store

    is_check = limit_s == CHECK_S
    options: Any = {"allow_http": True, "connect_timeout": f"{min(5, limit_s)}s", "timeout": f"{limit_s}s"}
    backoff = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=2)}
    retry: Any = {"max_retries": 0 if is_check else 5, "retry_timeout": timedelta(seconds=RETRY_S), "backoff": backoff}
    known: Any = dict(config)
    return S3Store(bucket, prefix=prefix or None, config=known, client_options=options, retry_config=retry)


def _store(limit_s: int) -> Any:
    return _opened(limit_s, settings.S3["bucket"], settings.S3["prefix"], tuple(settings.S3["config"].items()))


@contextmanager
def _in_words() -> Iterator[None]:
    """Turn obstore's errors into Problem E472, whose text reveals no key. Raises FileNotFoundError unchanged."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        said = str(error).partition("\n\nDebug source")[0]
        log.warning("the bucket: %s", said)
        status = re.search(r"status code: ([0-9]{3}[A-Za-z ]*)", said)
        reason = f"it answers {status[1].strip()}" if status else "it does not answer"
        raise Problem.of(codes.BUCKET_AWAY, reason=reason) from error
