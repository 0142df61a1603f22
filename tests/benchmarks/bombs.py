"""Small files that unpack to very much: is each refused with a number, while the site's own memory stays small?

Each file is prepared as the site's worker prepares an upload: in a child process with limits. Run
`python -m tests.benchmarks.bombs`. The last line is one JSON object.
"""

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.processes import ROOT

TEXT, IMAGES = '{"data":"text","vocab":300}', '{"data":"images","side":32}'
LIMIT_MB = 4000  # of a child
UNPACKED = 64 << 30  # bytes, more than a child may hold or write in the time
BLOCK = bytes(1 << 24)
DOUBLINGS = 22


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bombs", description=__doc__)
    parser.add_argument("--bombs", nargs="+", choices=BOMBS, default=list(BOMBS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.write:
        name, folder = wanted.write
        print(json.dumps(BOMBS[name][1](Path(folder))))
        return 0
    if wanted.one:
        name, folder = wanted.one
        print(json.dumps(set_off(name, Path(folder), json.loads(sys.stdin.read()))))
        return 0
    return publish("bombs", lambda: measure(wanted.bombs))


def measure(names: list[str]) -> Figures:
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:  # written in a process of its own, which may take much memory
            command = [sys.executable, "-m", "tests.benchmarks.bombs"]
            options = subprocess.run([*command, "--write", name, folder], capture_output=True, text=True, check=True)
            (Path(folder) / "out").mkdir()
            done = subprocess.run(
                [*command, "--one", name, folder], input=options.stdout, capture_output=True, text=True, check=True
            )
        lines.append(json.loads(done.stdout.splitlines()[-1]))
        say(json.dumps(lines[-1]))
    return {
        "bombs": lines,
        "not_refused": [line["bomb"] for line in lines if not line["code"]],
        "most_site_mb": max(line["site_mb"] for line in lines),
        "most_child_mb": max(line["child_mb"] for line in lines),
    }


def set_off(name: str, place: Path, options: list[str]) -> dict[str, Any]:
    """Prepare a bomb in this process, which plays the site's worker. `site_mb`: its memory above idle, at most."""
    os.environ["DJANGO_SETTINGS_MODULE"], os.environ["MANYHANDS_CHILD_MEMORY_MB"] = "config.settings", str(LIMIT_MB)
    sys.path.insert(0, str(ROOT / "platform"))
    import django

    django.setup()
    from peer_agent.protocol.errors import Problem
    from runs.processes import run_child

    idle, began, code = psutil.Process().memory_info().rss, time.monotonic(), ""
    command = ["prepare", str(place / "file"), str(place / "out" / "made"), "--preparation", BOMBS[name][0], *options]
    try:
        run_child(command, timeout_s=1800)
    except Problem as problem:
        code = problem.fault.code
    size = (place / "file").stat().st_size
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "bomb": name,
        "bytes": size,
        "code": code,
        "seconds": round(time.monotonic() - began, 1),
        "site_mb": round((most - idle) / 1e6),
        "child_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6),
    }


# --- bombs: each writes `file` into a folder, and returns further options of the child


def _blocks(size: int = UNPACKED) -> Iterator[bytes]:
    for _ in range(size // len(BLOCK)):
        yield BLOCK


def _zeros(size: int) -> bytes:
    """Return gzip's raw deflate stream of a block repeated, made once: deflate blocks can be concatenated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = packer.compress(BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15)
    return one * (size // len(BLOCK)) + end.flush()


def _gzip(folder: Path) -> list[str]:
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
    (folder / "file").write_bytes(header + _zeros(UNPACKED) + struct.pack("<II", 0, UNPACKED % 2**32))
    return ["--name=a.txt.gz"]


def _bz2(folder: Path) -> list[str]:
    (folder / "file").write_bytes(bz2.compress(BLOCK) * (UNPACKED // len(BLOCK)))
    return ["--name=a.txt.bz2"]


def _xz(folder: Path) -> list[str]:
    (folder / "file").write_bytes(lzma.compress(BLOCK) * (UNPACKED // len(BLOCK)))
    return ["--name=a.txt.xz"]


def _zstd(folder: Path) -> list[str]:
    import pyarrow as pa

    (folder / "file").write_bytes(pa.Codec("zstd").compress(BLOCK, asbytes=True) * (UNPACKED // len(BLOCK)))
    return ["--name=a.txt.zst"]


def _tar(folder: Path) -> list[str]:
    """Write a tar.gz of a file full of zeros."""
    info = tarfile.TarInfo("a.txt")
    info.size = 8 * 2**30
    packed = gzip.compress(info.tobuf(tarfile.GNU_FORMAT), mtime=0)
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
    body = header + _zeros(info.size + (1 << 24)) + struct.pack("<II", 0, 0)
    (folder / "file").write_bytes(packed + body)
    return ["--name=a.tar.gz"]


def _zip(folder: Path) -> list[str]:
    with (
        zipfile.ZipFile(folder / "file", "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("a.txt", "w", force_zip64=True) as out,
    ):
        for block in _blocks(8 << 30):
            out.write(block)
    return ["--name=a.zip"]


def _nested_zip(folder: Path) -> list[str]:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.txt", b"\0" * (1 << 28))
    with zipfile.ZipFile(folder / "file", "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(200):
            packed.writestr(f"{number}.zip", inner.getvalue())
    return ["--name=a.zip"]


def _parquet(folder: Path) -> list[str]:
    """Write a row of two gigabytes, which compresses to little."""
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.array([b"a" * (2**31 - 2**20)], pa.large_binary()).cast(pa.large_string())
    parquet.write_table(pa.table({"text": text}), folder / "file", compression="zstd")
    return ["--name=a.parquet"]


def _json(folder: Path) -> list[str]:
    (folder / "file").write_bytes(b"[" * 50_000_000)
    return ["--name=a.json"]


def _picture(folder: Path) -> list[str]:
    """Write a PNG of 40,000 x 40,000 pixels, in a zip of one class."""
    side, packer = 40_000, zlib.compressobj(9)
    row = bytes(1 + 3 * side)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    png += chunk(b"IDAT", data) + chunk(b"IEND", b"")
    with zipfile.ZipFile(folder / "file", "w") as packed:
        packed.writestr("cats/a.png", png)
    return ["--name=a.zip"]


def _tokenizer(folder: Path) -> list[str]:
    """Write a tokenizer of a few kilobytes that doubles each letter a again and again."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex("a"), "aa") for _ in range(DOUBLINGS)])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "file").write_text("a banana\n" * 20_000)
    return ["--name=a.txt", "--base", str(folder / "tokenizer.json")]


BOMBS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "tokenizer": (TEXT, _tokenizer),
    "picture": (IMAGES, _picture),
    "gzip": (TEXT, _gzip),
    "bz2": (TEXT, _bz2),
    "xz": (TEXT, _xz),
    "zstd": (TEXT, _zstd),
    "tar.gz": (TEXT, _tar),
    "zip": (TEXT, _zip),
    "zips in a zip": (TEXT, _nested_zip),
    "parquet": (TEXT, _parquet),
    "json": (TEXT, _json),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
