"""A simulated browser with forms, cookies, CSRF tokens and redirects, using only the standard library."""

import http.cookiejar
import json
import re
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
CSRF = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
SEEN = re.compile(r'name="seen" value="([^"]*)"')
LOOK_S = 0.25
TOKEN = re.compile(r"\bmh_[A-Za-z0-9_-]{20,}")


class Refused(Exception):
    """Raised if the site answers a request with an error, does not answer, or lacks an expected form."""


class Visitor:
    def __init__(self, site: str) -> None:
        self.site = site
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
        self.address = site

    @property
    def slug(self) -> str:
        """The slug of the run whose page is currently open."""
        return self.address.split("/runs/")[1].split("/")[0]

    def read(self, path: str) -> str:
        return self._open(urllib.request.Request(self.site + path)).decode()  # noqa: S310 (our own site)

    def read_json(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read(f"/api/v1/{path}"))
        return found

    def read_items(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self.read_json(f"{path}?limit=1000{cursor}")
            items += page["items"]
            if page["next"] is None:
                return items
            cursor = f"&cursor={page['next']}"

    def submit(
        self,
        path: str,
        fields: Mapping[str, str],
        files: Mapping[str, tuple[str, bytes]] | None = None,
        *,
        action: str = "",
    ) -> str:
        """Submit the form on the page `path`, to `action` if given. Return the next page.

        Raises Refused if the page has no form, or if a request fails.
        """
        csrf = CSRF.search(self.read(path))
        if csrf is None:
            raise Refused(f"there is no form at {path}")
        body, kind = _encoded({**fields, "csrfmiddlewaretoken": csrf[1]}, files or {})
        headers = {"Content-Type": kind, "Referer": self.site + path}
        request = urllib.request.Request(self.site + (action or path), body, headers)  # noqa: S310
        return self._open(request).decode()

    def publish(self, slug: str, limit_s: float = 120) -> None:
        """Publish a draft as soon as its manage page reports on the data.

        Raises Refused if that takes longer than `limit_s`, or if a request fails.
        """
        until = time.monotonic() + limit_s
        page = f"/runs/{slug}/manage/"
        while (seen := SEEN.search(self.read(page))) is None:
            if time.monotonic() > until:
                raise Refused(f"the data of {slug} are not ready after {limit_s:g} s")
            time.sleep(LOOK_S)
        self.submit(page, {"action": "open", "seen": seen[1]})

    def download(self, path: str, target: Path) -> None:
        target.write_bytes(self._open(urllib.request.Request(self.site + path)))  # noqa: S310

    def _open(self, request: urllib.request.Request) -> bytes:
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                self.address = response.url
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{request.full_url}: HTTP {error.code}") from error
        except OSError as error:
            raise Refused(f"{request.full_url}: {error}") from error


def _encoded(fields: Mapping[str, str], files: Mapping[str, tuple[str, bytes]]) -> tuple[bytes, str]:
    if not files:
        return urllib.parse.urlencode(fields).encode(), "application/x-www-form-urlencoded"
    boundary = secrets.token_hex(16)
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for name, (filename, content) in files.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
        parts.append(head.encode() + b"Content-Type: text/plain\r\n\r\n" + content + b"\r\n")
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"
