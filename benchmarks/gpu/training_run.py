"""A whole run of rlrun.train on the embedded world: its words, its numbers, and a rollout worker killed in it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.commands import output
from benchmarks.gpu.machine import Machine
from rlrun.observability.run_files import BOARD, EVALUATIONS, LOSSES, METRICS, read_json_lines

BF16 = ("rollout.precision=bf16", "actor.param_precision=bf16")
QUIET = ("logging.tensorboard=false", "logging.video_episodes=0")
ONE_EACH = ("env.num_workers=1", "rollout.num_workers=1", "actor.num_workers=1")
PACKAGES = ("hydra", "omegaconf", "mujoco")
TIME_LIMIT_S = 240.0
_POLL_S = 0.2


@dataclass(frozen=True)
class TrainingRun:
    """A run that has ended well."""

    folder: Path

    @property
    def steps(self) -> list[dict]:
        """Metrics by training step."""
        return list(read_json_lines(self.folder / METRICS))

    @property
    def success(self) -> dict:
        """The last evaluation, with its 95 % interval."""
        return list(read_json_lines(self.folder / EVALUATIONS))[-1]

    @property
    def largest_gap(self) -> float:
        """The largest mean distance of a step between log-probabilities of rollout and actor."""
        return max(step["rollout_logprob_gap"] for step in self.steps)

    @property
    def lost_workers(self) -> list[str]:
        """Workers that were lost and replaced."""
        return [loss["worker"] for loss in read_json_lines(self.folder / LOSSES)]


def size_of(machine: Machine) -> tuple[str, ...]:
    """Return the words for 20 training steps after the warm start; a few tiny ones on pretended CUDA."""
    if machine.is_pretended:
        return (*QUIET, "run=debug", "env.num_envs=4", "num_steps=4", "evaluation.num_episodes=1")
    return (*QUIET, "run=turning_on_radio", "num_steps=20", "evaluation.every_steps=0", "checkpoint.every_steps=10")


def train(
    command: Sequence[str],
    folder: Path,
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
    kills: bool = False,
) -> TrainingRun:
    """Run to the end. Raises CommandFailed.

    kills: whether rollout/0 is killed once, after the first training step.
    """
    killer = RolloutKiller(folder) if kills else None
    if killer is not None:
        killer.start()
    try:
        output([*command, *words, f"output_dir={folder}"], TIME_LIMIT_S, environment)
    finally:
        if killer is not None:
            killer.stop()
    return TrainingRun(folder)


class RolloutKiller(threading.Thread):
    """Kills the process of rollout/0 of a run once, after its first training step."""

    def __init__(self, folder: Path):
        super().__init__(name="rollout killer", daemon=True)
        self._folder, self._is_over = folder, threading.Event()

    def run(self) -> None:
        """Poll the run folder until there is a step, then kill."""
        while not self._is_over.wait(_POLL_S):
            beats = list(read_json_lines(self._folder / BOARD / "rollout-0.jsonl"))
            if beats and any(read_json_lines(self._folder / METRICS)):
                os.kill(beats[-1]["pid"], signal.SIGKILL)
                return

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        self.join(timeout=10)
