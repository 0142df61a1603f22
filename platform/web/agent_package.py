"""Downloads for installing the agent: bundles, the wheel built by setup, and command lines for each system."""

import hashlib
import ipaddress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from peer_agent.machine.hardware import PYTORCH_CPU
from peer_agent.protocol.releases import SUFFIX

SYSTEMS = {"linux": "Linux", "macos": "macOS", "windows": "Windows"}  # names in scripts/bundle.py and for people
BUNDLES = (".tar.gz", ".zip")


class Package(NamedTuple):
    """A file containing the agent: the wheel, or a bundle, which needs no Python."""

    path: Path
    size: int
    changed_at_ns: int

    @classmethod
    def at(cls, path: Path) -> "Package":
        stat = path.stat()
        return cls(path, stat.st_size, stat.st_mtime_ns)

    @property
    def name(self) -> str:
        """The file's name, from which pip reads a wheel's version."""
        return self.path.name

    @property
    def version(self) -> str:
        """The agent's version, which is the second part of the file name (PEP 427)."""
        return self.name.split("-")[1]

    @property
    def signature(self) -> Path | None:
        """The file with the wheel's signature by a release key, or None."""
        path = self.path.with_name(self.name + SUFFIX)
        return path if path.is_file() else None

    @property
    def system(self) -> str:
        """The operating system that a bundle is for, which is the third part of its file name."""
        return SYSTEMS.get(self.name.split("-")[2], "")

    @property
    def sha256(self) -> str:
        return _sha256(*self)


class System(NamedTuple):
    """The command lines for one operating system.

    `torch` installs PyTorch's CPU build, on systems for which PyPI offers the CUDA build. Computers without an NVIDIA
    card need it before `pip`. Each line calls the environment's own programs, so it works in any terminal.
    """

    name: str
    environment: str
    pip: str
    torch: str
    call: str  # the `manyhands` command, if the agent was installed with pip


class Install(NamedTuple):
    """All command lines to copy. `requirement` is what pip and uv install: the wheel's full address with its digest."""

    wheel: Package
    url: str
    requirement: str
    uv: str
    systems: tuple[System, ...]
    likely: str  # the visitor's system, according to the browser
    signature: str | None  # the address of the wheel's signature

    @property
    def upgrade_pip(self) -> str:
        """The command line that upgrades an older agent installed with pip in its own environment."""
        return f"pip install --force-reinstall --no-deps {self.requirement}"

    @property
    def upgrade_uv(self) -> str:
        """The command line that upgrades an older agent installed with uv."""
        return self.uv.replace("install", "install --reinstall", 1)


def current_wheel() -> Package | None:
    return max(_packages("*.whl"), key=lambda found: found.changed_at_ns, default=None)


def current_bundles(wheel: Package) -> list[Package]:
    """Return the bundles with the wheel's version that an operator has put in the wheel's folder."""
    found = [bundle for kind in BUNDLES for bundle in _packages(f"{wheel.version}-*{kind}") if bundle.system]
    return sorted(found, key=lambda bundle: bundle.name)


def _packages(pattern: str) -> list[Package]:
    try:
        return [Package.at(path) for path in Path(settings.DOWNLOADS).glob(f"manyhands-{pattern}")]
    except FileNotFoundError:  # a file was just replaced; the next call will find the new one
        return []


@lru_cache(maxsize=16)
def _sha256(path: Path, size: int, changed_at_ns: int) -> str:  # noqa: ARG001  (parts of the cache's key)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install_lines(request: HttpRequest) -> Install | None:
    """Return the command lines with this site's address, or None if there is no wheel."""
    wheel = current_wheel()
    if wheel is None:
        return None
    url = request.build_absolute_uri(reverse("web:wheel", args=[wheel.name]))
    requirement = f'"manyhands[train] @ {url}#sha256={wheel.sha256}"'
    systems = tuple(_systems(requirement))
    likely = likely_system(request.headers.get("User-Agent", ""))
    uv, signature = f"uv tool install --torch-backend auto {requirement}", url + SUFFIX if wheel.signature else None
    return Install(wheel, url, requirement, uv, systems, likely, signature)


def pip_call(request: HttpRequest) -> str:
    """Return the command that starts a pip-installed `manyhands` on the visitor's system."""
    likely = likely_system(request.headers.get("User-Agent", ""))
    return next((system.call for system in _systems("") if system.name == likely), "")


def _systems(requirement: str) -> list[System]:
    unix, windows = "~/manyhands/bin/{}", '& "$HOME\\manyhands\\Scripts\\{}"'
    make, cpu = "python3 -m venv ~/manyhands", f"{unix.format('pip')} install torch --index-url {PYTORCH_CPU}"
    return [
        System(
            name, environment, f"{programs.format('pip')} install {requirement}", torch, programs.format("manyhands")
        )
        for name, environment, programs, torch in (
            ("Linux", make, unix, cpu),
            ("macOS", make, unix, ""),
            ("Windows", "py -m venv $HOME\\manyhands", windows, ""),
        )
    ]


def is_near(request: HttpRequest) -> bool:
    """Return True if the visitor reached the site through an address on the local network."""
    host = request.get_host().rpartition(":")[0] or request.get_host()
    try:
        return ipaddress.ip_address(host.strip("[]")).is_private
    except ValueError:
        return host == "localhost"


def likely_system(agent: str) -> str:
    """Guess the visitor's operating system from the user agent. The page shows that system's instructions first."""
    if "Windows" in agent:
        return "Windows"
    return "macOS" if "Macintosh" in agent else "Linux"
