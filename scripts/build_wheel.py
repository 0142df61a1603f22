"""Build the agent's wheel into `var/download/`: `.venv/bin/python scripts/build_wheel.py`.

The wheel contains only `peer_agent`. Building it needs no network, and identical sources give identical bytes. The
wheel is rebuilt only if the sources have changed. scripts/setup.py runs this script.
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
EPOCH = "315532800"  # 1980, the earliest time that a zip file can store
IGNORED = shutil.ignore_patterns("__pycache__", "*.py[cod]")


def sources(root: Path) -> Iterator[Path]:
    """Yield each file that affects the wheel's contents, in a fixed order."""
    yield from (root / name for name in BESIDE)
    found = (root / PACKAGE).rglob("*")
    yield from sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def fingerprint(root: Path) -> str:
    """Return a digest of the sources and of the tools that build the wheel."""
    digest = hashlib.sha256(f"{version('setuptools')}\0{Path(__file__).read_text()}".encode())
    for path in sources(root):
        digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def is_current(root: Path, download: Path) -> bool:
    """Return True if the current wheel was built from these sources."""
    stamp = download / STAMP
    if not stamp.exists():
        return False
    built, _, name = stamp.read_text().partition(" ")
    return built == fingerprint(root) and (download / name).is_file()


def build(root: Path, download: Path) -> Path:
    """Build the wheel, replace the older one, and return the new path. Raises CalledProcessError if pip fails."""
    download.mkdir(parents=True, exist_ok=True)
    built = fingerprint(root)
    # The work folder is beside the target, so that the wheel can be moved in one step. The sources are copied, so that
    # no file that setuptools left in them gets into the wheel.
    with tempfile.TemporaryDirectory(dir=download.parent) as work:
        made = make_wheel(clean_copy(root, Path(work) / "source"), Path(work) / "wheel")
        place = download / made.name
        made.replace(place)
    for other in (*download.glob("*.whl"), *download.glob("*.whl.sig")):
        if other != place:  # even a signature of this name is of other bytes now
            other.unlink()
    (download / STAMP).write_text(f"{built} {place.name}")
    return place


def clean_copy(root: Path, target: Path) -> Path:
    """Copy the sources without compiled files, with permissions that do not depend on the checkout."""
    shutil.copytree(root / PACKAGE, target / PACKAGE, ignore=IGNORED)
    for name in BESIDE:
        shutil.copyfile(root / name, target / name)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def make_wheel(source: Path, target: Path) -> Path:
    """Build a wheel with pip, without network access. Setuptools is the only installed package that it uses."""
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
