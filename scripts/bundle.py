"""Build a bundle of the agent for this computer's system: `python -m scripts.bundle`.

The bundle contains Python and PyTorch for the CPU, and people start it with a double click. The script uses only the
standard library and runs on Linux, macOS and Windows. It bundles the wheel in `var/download/` and writes the archive to
the same folder, where the site's download page finds it. The release workflow runs the script on each system.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from scripts.setup import TORCH_CPU_INDEX

ROOT = Path(__file__).resolve().parent.parent
DOWNLOAD = ROOT / "var" / "download"
WORK = ROOT / "var" / "bundle"
FOLDER, PROGRAM = "Manyhands", "manyhands"  # name of the folder in the archive, and of its program
PYINSTALLER = ("pyinstaller==6.22.3", "pyinstaller-hooks-contrib==2026.9")

START = "from peer_agent.bundle import main\n\nmain()\n"
# Packages whose versions the agent reads at run time.
METADATA = ("kornia", "numpy", "peft", "safetensors", "tokenizers", "torch", "transformers")
# Files that are not needed: tests, files for compilers, and unused parts of Arrow. LICENCE_FILE has the licences.
NEEDLESS = (
    *("torch/test", "torch/bin/[!t]*", "torch/bin/te*"),  # torch/bin/torch_shm_manager stays
    *("pyarrow/include", "pyarrow/_flight*", "pyarrow/_s3fs*", "**/*arrow*flight*", "**/*arrow_s3*"),
    "*.dist-info/licenses",
)
LICENCES = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)
LICENCE_FILE = "LICENSES.txt"
# On macOS, a double click on this file opens Terminal. Downloaded files carry a mark that makes macOS check each of
# them. Once the user has allowed this file, it removes the mark from the other files.
MAC_STARTER = f"""#!/bin/sh
cd "$(dirname "$0")" || exit 1
xattr -dr com.apple.quarantine . 2>/dev/null
exec ./{PROGRAM}
"""


def archive_name(wheel: str, system: str, machine: str) -> str:
    """Return the file name of a bundle. `wheel` is the wheel's name; `system` and `machine` are Python's names.

    The archive is a zip file on Windows, which can open it, and elsewhere a tar file, which keeps permissions.
    """
    version, name = wheel.split("-")[1], {"Darwin": "macos"}.get(system, system.lower())
    kind = "zip" if system == "Windows" else "tar.gz"
    return f"manyhands-{version}-{name}-{machine.lower().replace('amd64', 'x86_64')}.{kind}"


def constraints(requirements: str) -> str:
    """Return the versions pinned in `requirements.txt` as constraints for pip, which may not contain extras."""
    return re.sub(r"#.*", "", re.sub(r"\[[\w,]+\]", "", requirements))


def make_environment(wheel: Path) -> Path:
    """Install the wheel and everything that training needs in a new environment. Return the environment's Python."""
    run(sys.executable, "-m", "venv", "--clear", WORK / "venv")
    python = WORK / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    exact = WORK / "constraints.txt"
    exact.write_text(constraints((ROOT / "requirements.txt").read_text(encoding="utf-8")), encoding="utf-8")
    install = (python, "-m", "pip", "install", "--quiet", "--constraint", exact)
    if sys.platform != "darwin":  # install torch separately, or pip would query this index for every package
        run(*install, "--no-deps", "--retries", "1", "--timeout", "10", "--extra-index-url", TORCH_CPU_INDEX, "torch")
    run(*install, f"manyhands[train] @ {wheel.as_uri()}", *PYINSTALLER)
    return python


def freeze(python: Path) -> Path:
    """Put the agent, Python and the packages in one folder, and return this folder."""
    start = WORK / f"{PROGRAM}.py"
    start.write_text(START)
    # Recipes and translations are found by name while the agent runs.
    ours = ("--collect-submodules", "peer_agent", "--collect-data", "peer_agent")
    versions = [part for name in METADATA for part in ("--copy-metadata", name)]
    places = ("--distpath", WORK / "dist", "--workpath", WORK / "build", "--specpath", WORK)
    run(python, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN", "--console", *places, *ours, *versions, start)
    folder = WORK / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    (WORK / "dist" / PROGRAM).rename(folder)
    return folder


def finish(folder: Path, packages: Path, system: str) -> None:
    """Remove unused files from the bundle's folder. Add the licences and, on macOS, the file to double-click."""
    for pattern in NEEDLESS:
        for path in sorted((folder / "_internal").glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    with (folder / LICENCE_FILE).open("w", encoding="utf-8") as file:
        for path in licences(packages):
            text = path.read_text(encoding="utf-8", errors="replace")
            file.write(f"=== {'/'.join(path.parts[-3:])}\n\n{text}\n\n")
    if system == "Darwin":
        starter = folder / f"{FOLDER}.command"
        starter.write_text(MAC_STARTER)
        starter.chmod(0o755)


def licences(packages: Path) -> Iterator[Path]:
    """Yield the paths of the licence files of Python and of the installed packages.

    The bundle has their texts in a single file, because paths like these would be too long for Windows.
    """
    pythons = (Path(os.__file__).parent / "LICENSE.txt", Path(sys.base_prefix) / "LICENSE.txt")
    found = (*pythons, *sorted(packages.glob("*.dist-info/**/*")))
    yield from (path for path in found if path.is_file() and LICENCES.search(path.name))


def check(folder: Path) -> None:
    """Start the program as a volunteer would, make it load all recipes, and let it check this computer."""
    found = (ROOT / "peer_agent" / "recipes").glob("*/training.py")
    modules = [f"peer_agent.recipes.{path.parent.name}.training" for path in found]
    recipes = ",".join((*modules, "peer_agent.publishing.portions", "peer_agent.publishing.pushing"))
    run(folder / PROGRAM, "--help")
    settings = {"MANYHANDS_HOME": str(WORK / "home"), "MANYHANDS_RECIPES": recipes}
    run(folder / PROGRAM, "doctor", environment={**os.environ, **settings})


def pack(folder: Path, archive: Path) -> None:
    draft = archive.with_name(f".{archive.name}")
    if archive.suffix == ".zip":
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, path.relative_to(folder.parent))
    else:
        with tarfile.open(draft, "w:gz", compresslevel=6) as packed:
            packed.add(folder, folder.name)
    draft.replace(archive)


def run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, cwd=WORK, env=environment)


def main() -> int:
    wheel = max(DOWNLOAD.glob("manyhands-*.whl"), default=None, key=lambda path: path.stat().st_mtime_ns)
    if wheel is None:
        print(f"bundle: There is no wheel in {DOWNLOAD}. Run make setup first.", file=sys.stderr)
        return 1
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        python = make_environment(wheel)
        folder = freeze(python)
        packages = next((WORK / "venv").glob("**/site-packages"))
        finish(folder, packages, platform.system())
        check(folder)
    except subprocess.CalledProcessError as error:
        return error.returncode
    archive = DOWNLOAD / archive_name(wheel.name, platform.system(), platform.machine())
    pack(folder, archive)
    print(f"bundle: Built {archive} ({archive.stat().st_size / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
