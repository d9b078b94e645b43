"""Which torch `make` installs, by the driver."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from rlrun.system import torch_index
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
        ("echo No devices were found", f"--extra-index-url {CPU}", "no NVIDIA GPU", 0),
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
    monkeypatch.setattr(torch_index, "urlopen", lambda request, timeout: io.BytesIO())
    assert main() == status
    printed = capsys.readouterr()
    assert printed.out.strip() == options and reason in printed.err


@pytest.mark.parametrize("index", ["CPU", "CUDA_12"])
def test_an_index_out_of_reach_is_tried_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], index: str
) -> None:
    stand_in(tmp_path, monkeypatch, {"CPU": "echo No devices were found", "CUDA_12": "echo 550.54.15"}[index])
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"  # where nothing listens any more
    monkeypatch.setattr(torch_index, index, url)
    assert main() == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == "" and f"{url} cannot be reached" in printed.err


def test_an_index_that_answers_with_an_error_is_left_to_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: Request, timeout: float) -> None:
        raise HTTPError(request.full_url, 403, "Forbidden", Message(), None)

    monkeypatch.setattr(torch_index, "urlopen", refuse)
    assert torch_index.options_of_pip(CPU) == ["--extra-index-url", CPU]


def test_it_needs_no_installed_package() -> None:
    """`make` runs it in a new environment, from the root of the repository."""
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); import rlrun.system.torch_index"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
