"""Build the agent's wheel into `var/download/`: `.venv/bin/python scripts/build_wheel.py`.

The wheel holds only `peer_agent`, needs no network, and has the same bytes for the same sources. It is rebuilt only if
they have changed; scripts/setup.py calls this last.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOWNLOAD = ROOT / "var" / "download"
PACKAGE, BESIDE = "peer_agent", ("pyproject.toml", "LICENSE")
STAMP = "wheel.stamp"
EPOCH = "315532800"  # 1980, the oldest time that a zip file can hold
IGNORED = shutil.ignore_patterns("__pycache__", "*.py[cod]")


def sources(root: Path) -> Iterator[Path]:
    """Yield every file that decides the wheel's content, in a fixed order."""
    yield from (root / name for name in BESIDE)
    found = (root / PACKAGE).rglob("*")
    yield from sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def fingerprint(root: Path) -> str:
    """Return a digest of the sources and of what builds them."""
    digest = hashlib.sha256(f"{version('setuptools')}\0{Path(__file__).read_text()}".encode())
    for path in sources(root):
        digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def is_current(root: Path, download: Path) -> bool:
    """Return True if the wheel was built from these sources."""
    stamp = download / STAMP
    if not stamp.exists():
        return False
    built, _, name = stamp.read_text().partition(" ")
    return built == fingerprint(root) and (download / name).is_file()


def build(root: Path, download: Path) -> Path:
    """Build the wheel in place of an older one and return its path. Raises CalledProcessError."""
    download.mkdir(parents=True, exist_ok=True)
    built = fingerprint(root)
    # Beside its target, so that it can be moved in one step; from a copy, so that no leftover of setuptools gets in.
    with tempfile.TemporaryDirectory(dir=download.parent) as work:
        made = make_wheel(clean_copy(root, Path(work) / "source"), Path(work) / "wheel")
        place = download / made.name
        made.replace(place)
    for other in download.glob("*.whl"):
        if other != place:
            other.unlink()
    (download / STAMP).write_text(f"{built} {place.name}")
    return place


def clean_copy(root: Path, target: Path) -> Path:
    """Copy only the sources, with the same permissions wherever they come from."""
    shutil.copytree(root / PACKAGE, target / PACKAGE, ignore=IGNORED)
    for name in BESIDE:
        shutil.copyfile(root / name, target / name)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def make_wheel(source: Path, target: Path) -> Path:
    """Let pip build without network, and with only setuptools of what is installed."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--wheel-dir", target)
    command: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", *options, source]
    subprocess.run(command, check=True, cwd=source, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    return next(target.glob("*.whl"))


def main() -> int:
    if is_current(ROOT, DOWNLOAD):
        return 0
    try:
        place = build(ROOT, DOWNLOAD)
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(f"setup: Built {place.relative_to(ROOT)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
