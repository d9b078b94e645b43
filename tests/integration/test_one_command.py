"""A run folder knows its configuration: a run resumes, and its policy is evaluated, by its path alone."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.observability.run_files import METRICS, read_json_lines
from rlrun.system.errors import ExitStatus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    *("run=cartpole", "cluster.kind=local", "name=a pole", "logging.tensorboard=false", "evaluation.num_episodes=2"),
    *("algorithm.horizon=16", "algorithm.global_batch_size=128", "actor.micro_batch_size=64"),
    "env.max_control_steps=40",
]


def train(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "rlrun.train", *TINY, *overrides]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(folder: Path, command: list[str]) -> str:
    """Run a command to its good end. Returns what it printed."""
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def command_in(text: str) -> list[str]:
    """The command to paste, in the words of a shell."""
    line = next(line for line in reversed(text.splitlines()) if "rlrun.train resume=" in line)
    return shlex.split(line.partition(": ")[2])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of two steps below a working directory with a space, and its console."""
    place = tmp_path_factory.mktemp("a place")
    run = train(place, "num_steps=2")
    told, _ = run.communicate(timeout=300)
    assert run.returncode == 0, told
    (folder,) = (place / "runs" / "a pole").iterdir()
    return folder, told


def test_a_finished_run_goes_on_by_the_pasted_command(finished: tuple[Path, str]) -> None:
    folder, told = finished
    command = command_in(told)
    assert "num_steps=4" in command
    resumed = finish(folder.parents[2], command)
    assert "resumed" in resumed and "at step 2" in resumed
    assert [line["step"] for line in read_json_lines(folder / METRICS)] == [1, 2, 3, 4]
    assert list(folder.parent.iterdir()) == [folder], "it goes on in its own folder"


@pytest.mark.long
def test_an_interrupted_run_resumes_by_the_pasted_command(tmp_path: Path) -> None:
    run = train(tmp_path, "num_steps=100000")
    began = time.monotonic()
    while run.poll() is None and time.monotonic() < began + 300:
        if any(file.stat().st_size for file in tmp_path.glob("runs/a pole/*/metrics.jsonl")):
            break
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    told, _ = run.communicate(timeout=300)
    assert run.returncode == ExitStatus.preempted, told
    assert "resumed" in finish(tmp_path, [*command_in(told), "max_minutes=0.0001"])
    (folder,) = (tmp_path / "runs" / "a pole").iterdir()
    steps = [line["step"] for line in read_json_lines(folder / METRICS)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize(
    "part", [*(pytest.param(part, marks=pytest.mark.long) for part in (".", "checkpoints")), "policy"]
)
def test_a_policy_is_evaluated_by_its_path_alone(finished: tuple[Path, str], tmp_path: Path, part: str) -> None:
    folder = finished[0] / part
    if part == "checkpoints":
        folder = sorted(folder.glob("step_*"))[0]
    command = [sys.executable, "-m", "rlrun.eval", f"checkpoint={folder}", "output_dir=evaluation"]
    more = ["env.num_envs=3", "env.num_workers=3"] if part == "policy" else []  # no multiple of anything in training
    assert "95 % interval" in finish(tmp_path, [*command, *more])
    assert json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())["episodes"] == 2
    slots = json.loads((tmp_path / "evaluation" / "plan.json").read_text())["slots"]
    assert {slot["role"] for slot in slots} == {"env", "rollout"}, "nobody trains"
