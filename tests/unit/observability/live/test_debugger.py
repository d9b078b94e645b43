"""breakpoint() opens a debugger in the driver, whose q ends the run; without a terminal it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.config.schema import RunConfig
from rlrun.observability.console import Console
from rlrun.system.errors import RunError
from rlrun.system.process_io import refuse_breakpoints

ARGUMENTS = [
    *("run=cartpole", "env.gymnasium.id=tests.standins.pick_the_side:PickTheSide-v0", "cluster.kind=local"),
    *("env.gymnasium.kwargs={fault: breakpoint, has_image: false}", "env.num_workers=1", "rollout.num_workers=1"),
    *("env.num_envs=2", "algorithm.horizon=4", "algorithm.global_batch_size=8", "actor.micro_batch_size=8"),
    *("evaluation.num_episodes=2", "num_steps=1", "env.max_control_steps=4"),
]


def debugged(folder: Path, repository: Path, keys: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "rlrun.train", *ARGUMENTS, f"output_dir={folder}"]
    return subprocess.run(program, cwd=repository, input=keys, capture_output=True, text=True, timeout=240, check=False)


def test_q_ends_the_run_like_an_interruption(tmp_path: Path, repository: Path) -> None:
    """In the middle of a simulator, where an exception would be an infra fault."""
    done = debugged(tmp_path, repository, "p 'side', self._side\nq\n")
    assert done.returncode == 130, done.stdout + done.stderr
    assert "('side', " in done.stdout and "q ends the run" in done.stdout
    assert "interrupted" in done.stderr
    assert "BdbQuit" not in done.stderr and "[rank0]" not in done.stderr and "Traceback" not in done.stderr


def test_the_live_view_steps_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: RunConfig) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.dir")  # in place of a prompt
    before = sys.breakpointhook
    with Console(config, tmp_path, is_terminal=True) as console:
        assert console._live is not None
        breakpoint()
        assert console._live is None
        console.note("the run goes on")
    assert sys.breakpointhook is before


def test_a_worker_without_a_terminal_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    refuse_breakpoints("env/3")
    with pytest.raises(RunError, match="breakpoint\\(\\) was called in env/3") as caught:
        breakpoint()
    assert "cluster.kind=local" in str(caught.value.remedy)
