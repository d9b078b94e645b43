"""Which torch `make` installs, by the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.system.torch_index import CPU, CUDA_12, index_for, main
from tests.standins.nvidia_smi import stand_in

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("driver", "index"),
    [("580.65.06", None), ("595.1", None), ("579.9", CUDA_12), ("570.86.15", CUDA_12), ("525.60.13", CUDA_12)],
)
def test_a_driver_gets_the_newest_cuda_that_it_runs(driver: str, index: str | None) -> None:
    assert index_for(driver) == index


def test_a_driver_that_runs_no_torch_is_refused_with_the_one_to_install() -> None:
    with pytest.raises(ValueError, match=r"470\.82\.01.*580.*525"):
        index_for("470.82.01")


@pytest.mark.parametrize(
    ("script", "options", "reason", "status"),
    [
        ("echo 580.159.04", "", "PyPI", 0),
        ("echo 550.54.15; echo 550.54.15", f"--extra-index-url {CUDA_12}", "driver is 550.54.15", 0),
        ("echo No devices were found", f"--retries 1 --extra-index-url {CPU}", "no NVIDIA GPU", 0),
        ("echo failed; exit 9", "", "status 9", 0),
        ("echo 470.82.01", "", "too old", 1),
    ],
)
def test_options_for_pip(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    options: str,
    reason: str,
    status: int,
) -> None:
    stand_in(tmp_path, monkeypatch, script)
    assert main() == status
    printed = capsys.readouterr()
    assert printed.out.strip() == options and reason in printed.err


def test_it_needs_no_installed_package() -> None:
    """`make` runs it in a new environment, from the root of the repository."""
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); import rlrun.system.torch_index"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
