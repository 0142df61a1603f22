"""A volunteer's environment outside the clone, holding only the wheel that the site serves."""

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

from demo.processes import bare_environment
from tests.end_to_end.rig.browser import Reader

LIMIT_S = 120


def downloaded_wheel(reader: Reader, site: str, folder: Path) -> Path:
    reader.page.goto(f"{site}/download/")
    reader.page.click("summary:has-text('digest')")
    row = reader.page.locator("table.files tbody tr")
    with reader.page.expect_download() as begun:
        row.locator("a").click()
    wheel = folder / begun.value.suggested_filename
    begun.value.save_as(wheel)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == row.locator(".digest").inner_text()
    return wheel


def make_environment(wheel: Path, folder: Path) -> None:
    """Create an environment that holds the wheel and borrows the large packages from the current environment."""
    home = folder.parent
    told([sys.executable, "-m", "venv", "--without-pip", str(folder)], home)
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    told([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], home)
    own = next((folder / "lib").glob("python3*")) / "site-packages"
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = told([python, "-c", "import torch, peer_agent; print(peer_agent.__file__)"], home)
    assert Path(where.strip()).is_relative_to(own), "what is lent does not come first"


def told(command: list[str], home: Path, environment: dict[str, str] | None = None) -> str:
    own = environment or bare_environment(home)
    done = subprocess.run(command, cwd=home, env=own, timeout=LIMIT_S, check=True, capture_output=True, text=True)
    return done.stdout
