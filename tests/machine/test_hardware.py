"""The device on which a machine computes, as reported by the GPU driver's tool. In these tests, the tool reports two
GPUs.
"""

import os
import platform
import sys
from pathlib import Path

import pytest

from peer_agent.machine import hardware, limits
from peer_agent.machine.hardware import PYTORCH_CPU, gpu_memory, gpu_name, install_line, system_in_words
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S
from peer_agent.protocol.errors import Fault

TOOL = """#!/bin/sh
case "$1" in --id=0) name="RTX 3060" free=11000 ;; --id=1|--id=GPU-7f) name="RTX 4090" free=23000 ;; *) exit 6 ;; esac
case "$2" in --query-gpu=name) echo "$name" ;; --query-gpu=memory.free) echo "$free" ;; esac
"""


@pytest.fixture(autouse=True)
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "name", "free_mb"),
    [
        (None, "RTX 3060", 11_000),
        ("0", "RTX 3060", 11_000),
        ("1", "RTX 4090", 23_000),
        ("1,0", "RTX 4090", 23_000),
        ("GPU-7f", "RTX 4090", 23_000),
        ("MIG-8a", "RTX 3060", None),
        ("", "", None),
        ("-1", "", None),
        ("7", "", None),
    ],
)
def test_of_several_gpus_it_is_the_one_that_torch_would_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, name: str, free_mb: int | None
) -> None:
    """A regression: with one agent per GPU, the second agent was shown the free memory of the first GPU."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_name() == name
    assert gpu_memory() == (free_mb << 20 if free_mb is not None else None)
    assert name in system_in_words()


@pytest.mark.parametrize(
    ("visible", "has_pip", "line"),
    [
        ("0", True, f"{sys.executable} -m pip install --force-reinstall torch"),
        ("", True, f"{sys.executable} -m pip install --force-reinstall torch --extra-index-url {PYTORCH_CPU}"),
        ("0", False, f"uv pip install --python {sys.executable} --torch-backend auto --reinstall torch"),
    ],
)
def test_line_installs_the_build_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, visible: str, line: str, *, has_pip: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: has_pip or None)
    assert install_line("torch", again=True) == line


@pytest.mark.parametrize(("before", "after"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST", "FASTEST_FIRST")])
def test_torch_counts_gpus_as_the_tool_does(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    """If GPUs differ, torch gives the first number to the fastest, and the driver's tool to the one in the lowest
    slot.
    """
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", before or "")
    if before is None:
        monkeypatch.delenv("CUDA_DEVICE_ORDER")
    limits.apply_limits(limits.Limits(1))
    assert os.environ["CUDA_DEVICE_ORDER"] == after


@pytest.mark.parametrize(("compiles", "processes"), [(False, None), (True, "1")])
def test_torch_compiles_in_this_process(
    monkeypatch: pytest.MonkeyPatch, *, compiles: bool, processes: str | None
) -> None:
    """Compiling in other processes would exceed the limits set by the volunteer."""
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "as it was before")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    limits.apply_limits(limits.Limits(1, compiles=compiles))
    assert os.environ.get("TORCHINDUCTOR_COMPILE_THREADS") == processes


def code_of(fault: Fault | None) -> str:
    return fault.code if fault is not None else ""


@pytest.mark.parametrize(
    ("free", "memory", "disk", "in_use"),
    [
        (199_999_999, "E120", "E121", "E121"),
        (200_000_000, "E120", "E138", ""),
        (499_999_999, "E120", "E138", ""),
        (500_000_000, "E137", "E138", ""),
        (1_999_999_999, "E137", "E138", ""),
        (2_000_000_000, "", "", ""),
    ],
)
def test_what_is_free(free: int, memory: str, disk: str, in_use: str) -> None:
    folder = Path("home")
    assert code_of(hardware.of_memory(free)) == memory
    assert code_of(hardware.of_disk(free, folder)) == disk
    assert code_of(hardware.of_disk_in_use(free, folder)) == in_use


@pytest.mark.parametrize(
    ("offset_s", "code"),
    [(60, ""), (-60, ""), (61, "E139"), (-CLOCK_TOLERANCE_S, "E139"), (CLOCK_TOLERANCE_S + 1, "E204")],
)
def test_clocks(offset_s: float, code: str) -> None:
    assert code_of(hardware.of_clock(offset_s)) == code


@pytest.mark.parametrize(
    ("missing", "answering", "code"), [([], [], ""), ([], ["a"], ""), (["a"], ["b"], "E136"), (["b", "a"], [], "E135")]
)
def test_relays(missing: list[str], answering: list[str], code: str) -> None:
    fault = hardware.of_relays(missing, answering)
    assert code_of(fault) == code
    if code == "E135":
        assert fault is not None
        assert "(a, b)" in fault.text
