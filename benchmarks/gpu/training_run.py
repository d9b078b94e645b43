"""A whole run of rlrun.train on the embedded world: its words, its numbers, and workers killed in it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.commands import output
from benchmarks.gpu.machine import Machine
from rlrun.observability.run_files import BOARD, LOSSES, METRICS, read_json_lines

BF16 = ("rollout.precision=bf16", "actor.param_precision=bf16")
QUIET = ("logging.tensorboard=false", "logging.video_episodes=0")
ONE_EACH = ("env.num_workers=1", "rollout.num_workers=1", "actor.num_workers=1")
PACKAGES = ("rlrun", "hydra", "omegaconf", "mujoco", "bddl", "pyarrow", "PIL")
TIME_LIMIT_S = 240.0
STEPS_BETWEEN = 3  # of two losses
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
    def num_steps(self) -> int:
        """Training steps, of which those after a lost actor were done twice."""
        return len({step["step"] for step in self.steps})

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
    victims: Sequence[str] = (),
) -> TrainingRun:
    """Run to the end. Raises CommandFailed.

    victims: workers that are killed once each, see WorkerKiller.
    """
    killer = WorkerKiller(folder, victims)
    killer.start()
    try:
        output([*command, *words, f"output_dir={folder}"], TIME_LIMIT_S, environment)
    finally:
        killer.stop()
    return TrainingRun(folder)


class WorkerKiller(threading.Thread):
    """Kills the processes of some workers of a run, once each: the first one after the first training step.

    Each further one follows when the run has gone on for some steps after the loss before.
    Example: WorkerKiller(folder, ("rollout/0", "actor/0"))
    """

    def __init__(self, folder: Path, victims: Sequence[str]):
        super().__init__(name="worker killer", daemon=True)
        self._folder, self._victims, self._is_over = folder, victims, threading.Event()

    def run(self) -> None:
        """Poll the run folder until there are enough steps, then kill."""
        num_wanted = 1
        for victim in self._victims:
            while not self._kills(victim, num_wanted):
                if self._is_over.wait(_POLL_S):
                    return
            num_wanted = self._num_steps() + STEPS_BETWEEN

    def _kills(self, victim: str, num_wanted: int) -> bool:
        beats = list(read_json_lines(self._folder / BOARD / f"{victim.replace('/', '-')}.jsonl"))
        if not beats or self._num_steps() < num_wanted:
            return False
        os.kill(beats[-1]["pid"], signal.SIGKILL)
        return True

    def _num_steps(self) -> int:
        return len(list(read_json_lines(self._folder / METRICS)))

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        self.join(timeout=10)
