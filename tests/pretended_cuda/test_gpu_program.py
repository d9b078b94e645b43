"""`make gpu` runs to its end without a card, so that it works on the day one is there."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.gpu.commands import ROOT, output
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.system.errors import ExitStatus
from tests.pretended_cuda import device
from tests.unit.policies.small import small_policy

BUDGET_S = 20.0  # ends before all rows have
TIME_LIMIT_S = 600.0  # 80 s of a processor; on a loaded machine it waits for others
LEFT_OUT = {
    "attention by flash": "flash_attn",
    "torch.compile": "triton",
    "7.5 B, behavior: update, no recompute, Inductor": "triton",
    "8-bit AdamW": "bitsandbytes",
    "MuJoCo Warp": "rlrun_libero_warp",
}
TWO_CARDS = ("training on Ray, NCCL between", "training on Ray, weights by NCCL")
SHOWN = ("training in one process", "a real checkpoint: loaded", "a real checkpoint: acts")


@pytest.mark.long
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.skipif(device.compiler() is None, reason="no C++ compiler, which a pretended CUDA device needs")
def test_it_runs_to_its_end(tmp_path: Path) -> None:
    VlaPolicy(*small_policy()).save(tmp_path / "policy")
    command = [sys.executable, "-m", "benchmarks.gpu", "--pretended"]
    environment = {"RLRUN_OFT": str(tmp_path / "policy"), "OMP_NUM_THREADS": "1"}
    printed = output(command, TIME_LIMIT_S, environment)
    lines = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    outcome = {cells[0]: cells[-1] for cells in lines[1:]}
    missing = tuple(name for name, package in LEFT_OUT.items() if find_spec(package) is None)
    for name, result in outcome.items():
        is_left_out = name.startswith(missing) or name.startswith(TWO_CARDS)
        wanted = "left out" if is_left_out else "as expected" if name.startswith(SHOWN) else "not on pretended CUDA"
        assert result == wanted, f"{name}: {result}\n{printed}"
    assert len(outcome) == int(printed.splitlines()[-1].split()[0]) > 35


@pytest.mark.skipif(device.compiler() is None, reason="no C++ compiler, which a pretended CUDA device needs")
def test_a_budget_ends_it(tmp_path: Path) -> None:
    rows = ["pinned uploads", "training on Ray, actor and rollout in turns"]
    command = [sys.executable, "-m", "benchmarks.gpu", "--pretended", "--budget", str(BUDGET_S), "--rows", *rows]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    assert "| the budget had ended | not reached |" in done.stdout and "| OFF |" not in done.stdout
    has_measured = "| ran: 0 of 200 differ |" in done.stdout  # not on a loaded machine
    assert done.returncode == (ExitStatus.ok if has_measured else ExitStatus.unexpected)
