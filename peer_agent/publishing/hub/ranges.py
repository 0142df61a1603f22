"""A file of a public dataset on the Hub, read where it lies: by ranges, of one commit, without a token."""

import io
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub.client import PAUSE_S, TRIES, api_of, in_words, opened

if TYPE_CHECKING:
    from typing_extensions import Buffer

RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class RangeFile(io.RawIOBase):
    """Seekable, read-only, unbuffered. Its reads raise Problem E346, E347, E397, and E414 where it is another file.

    `size`: bytes, as the Hub listed them; `most`: that may be read of it in all. `tell`: called with how many have
    come, before more are read.
    """

    def __init__(
        self,
        repository: str,
        commit: str,
        name: str,
        *,
        size: int,
        endpoint: str,
        most: int,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._told = tell
        self.repository, self.commit, self.name, self.endpoint = repository, commit, name, endpoint
        self.size, self.most = size, most
        self._at = self.taken = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As files do."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: "Buffer", /) -> int:
        """Fill it, but for what lies behind the end."""
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def read(self, size: int = -1, /) -> bytes:
        """All of it at once, over as many connections as that takes."""
        left = max(0, self.size - self._at)
        wanted = left if size < 0 else min(size, left)
        self.taken += wanted
        if self.taken > self.most:
            raise self._strange(f"more than {self.most:,} bytes are to be read of it")
        found, failed = bytearray(), 0
        while len(found) < wanted:
            had = len(found)
            self._go_on(found, wanted)
            failed = 0 if len(found) > had else failed + 1
            if failed >= TRIES:
                raise Problem.of("E346", endpoint=self.endpoint, reason="it sends no data")
            if failed:
                time.sleep(PAUSE_S)
        self._at += wanted
        return bytes(found)

    def _go_on(self, found: bytearray, wanted: int) -> None:
        """As much as comes over one connection."""
        import httpx2

        first, last = self._at + len(found), self._at + wanted - 1
        about: dict[str, Any] = {"kind": "dataset", "commit": self.commit, "bytes_": f"{first}-{last}"}
        with in_words(self.endpoint, self.repository, reading="dataset"):
            try:
                with opened(api_of("", self.endpoint), self.repository, self.name, **about) as response:
                    self._require_range(response, first)
                    for block in response.iter_bytes():
                        self._told(len(block))
                        found += block[: wanted - len(found)]
                        if len(found) >= wanted:
                            return
            except httpx2.TransportError:
                if not found:
                    raise
                # A connection that ends early: what came of it is kept.

    def _require_range(self, response: Any, first: int) -> None:
        said = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code != 206 or said is None or int(said[1]) != first:
            raise self._strange("no part of it can be had")
        if int(said[2]) != self.size:
            raise self._strange(f"it has {int(said[2]):,} bytes and not {self.size:,}")

    def _strange(self, reason: str) -> Problem:
        return Problem.of("E414", repository=self.repository, name=self.name, reason=reason)
