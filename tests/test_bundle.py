"""The script that builds bundles of the agent, apart from the build itself, which the release workflow runs."""

import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import bundle
from scripts.build_wheel import ROOT
from web.agent_package import BUNDLES, Package

WHEEL = "manyhands-0.2.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("system", "machine", "name", "words"),
    [
        ("Linux", "x86_64", "manyhands-0.2.0-linux-x86_64.tar.gz", "Linux"),
        ("Darwin", "arm64", "manyhands-0.2.0-macos-arm64.tar.gz", "macOS"),
        ("Windows", "AMD64", "manyhands-0.2.0-windows-x86_64.zip", "Windows"),
    ],
)
def test_the_site_knows_each_bundle_by_its_name(system: str, machine: str, name: str, words: str) -> None:
    made = bundle.archive_name(WHEEL, system, machine)
    package = Package(Path(made), 0, 0)
    assert (made, package.system, package.version) == (name, words, "0.2.0")
    assert made.endswith(BUNDLES)


def test_constraints_are_what_pip_accepts() -> None:
    lines = bundle.constraints((ROOT / "requirements.txt").read_text()).split("\n")
    named = [Requirement(line) for line in lines if line.strip()]
    assert {"torch", "transformers", "uvicorn"} <= {each.name for each in named}
    assert [each.name for each in named if each.extras] == [], "pip refuses extras in constraints"


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """Return a folder like PyInstaller's, with a file in each place that matters."""
    folder = tmp_path / bundle.FOLDER
    for name in (
        *("manyhands", "_internal/torch/bin/torch_shm_manager", "_internal/torch/bin/test_api"),
        *("_internal/torch/bin/protoc", "_internal/torch/test/a.py", "_internal/pyarrow/libarrow.so"),
        *("_internal/pyarrow/libarrow_flight.so", "_internal/torch-2.dist-info/licenses/LICENSE"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "_internal/libarrow_flight.so").symlink_to("pyarrow/libarrow_flight.so")
    (folder / "_internal/libarrow.so").symlink_to("pyarrow/libarrow.so")
    (folder / "manyhands").chmod(0o755)
    return folder


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    licence = tmp_path / "packages" / "torch-2.dist-info" / "licenses" / "LICENSE"
    licence.parent.mkdir(parents=True)
    licence.write_text("You may.")
    licence.with_name("RECORD").write_text("no licence")
    return tmp_path / "packages"


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_needless_files_go_and_licences_stay(frozen: Path, packages: Path) -> None:
    bundle.finish(frozen, packages, "Linux")
    assert files_in(frozen) == {
        *("manyhands", "LICENSES.txt", "_internal/libarrow.so", "_internal/pyarrow/libarrow.so"),
        "_internal/torch/bin/torch_shm_manager",
    }
    assert "torch-2.dist-info/licenses/LICENSE\n\nYou may." in (frozen / "LICENSES.txt").read_text()


def test_archives_keep_permissions_and_links(frozen: Path, packages: Path, tmp_path: Path) -> None:
    bundle.finish(frozen, packages, "Darwin")
    bundle.pack(frozen, tmp_path / "bundle.tar.gz")
    with tarfile.open(tmp_path / "bundle.tar.gz") as packed:
        modes = {each.name: each.mode & 0o777 for each in packed.getmembers()}
        assert packed.getmember("Manyhands/_internal/libarrow.so").issym()
    assert modes["Manyhands/manyhands"] == modes["Manyhands/Manyhands.command"] == 0o755
    bundle.pack(frozen, tmp_path / "bundle.zip")
    with zipfile.ZipFile(tmp_path / "bundle.zip") as zipped:
        assert zipped.read("Manyhands/manyhands") == b"manyhands"
    assert sorted(path.name for path in tmp_path.glob("*bundle*")) == ["bundle.tar.gz", "bundle.zip"]
