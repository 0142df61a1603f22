"""Serve shards that are generated on request: `python -m tests.benchmarks.agents.shard_server HOST COUNT FILE`.

A shard's content depends only on its number. The server writes a manifest to FILE, one digest per line, then prints
its port. Like the site, it serves shards by digest and supports byte ranges.
"""

import hashlib
import sys
from concurrent.futures import ProcessPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
from safetensors.numpy import save

TOKENS = 1 << 23  # tokens in a shard: 16 MiB


def content(number: int) -> bytes:
    return save({"tokens": np.random.Philox(key=number).random_raw(TOKENS // 4).view(np.uint16)})


def digest(number: int) -> str:
    return hashlib.sha256(content(number)).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    numbers: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        number = self.numbers.get(self.path.rsplit("/", 1)[-1])
        if number is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        whole, asked = content(number), self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
        self.send_header("Content-Length", str(len(whole) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        self.end_headers()
        self.wfile.write(whole[start:])

    def log_message(self, *_: object) -> None:
        pass


def main(host: str, count: int, manifest: Path) -> None:
    with ProcessPoolExecutor() as pool:
        digests = list(pool.map(digest, range(count), chunksize=16))
    manifest.write_text("\n".join(digests))
    Handler.numbers = {name: number for number, name in enumerate(digests)}
    server = ThreadingHTTPServer((host, 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
