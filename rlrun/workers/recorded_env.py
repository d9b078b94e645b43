"""Env workers that record their interaction with the policy, or replay a recorded one without the policy."""

from __future__ import annotations

from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.data.recording import Recording, differences, read_message
from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.edges.trajectories import Trajectory
from rlrun.system.telemetry import Telemetry
from rlrun.workers.env_worker import EnvWorker, Episodes
from rlrun.workers.recorder import Recorder, ReplayedStep


class RecordedEnvWorker(EnvWorker):
    """An env worker of a run with `record.num_steps`."""

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry, python: str | None = None):
        super().__init__(config, rank, telemetry, python)
        self._recorder = Recorder(config, telemetry)

    def collect(self, step: int, policy_version: int = 0) -> Episodes:
        return self._recorder.interaction(step, super().collect(step, policy_version), self.actor_ranks)


class ReplayedEnvWorker(EnvWorker):
    """An env worker of a run with `replay.path`."""

    def replay(self, folder: str, step: int) -> ReplayedStep:
        """Repeat a step recorded in `folder` with the recorded actions, without a policy."""
        again = self._collect(step, policy_version=step)  # as in the recorded run: one policy version per step
        return replay_interaction(again, Recording(Path(folder)), step, self.telemetry.worker, self.actor_ranks)


def replay_interaction(episodes: Episodes, recording: Recording, step: int, worker: str, ranks: range) -> ReplayedStep:
    """Replay an env worker's step: answer every observation with the recorded actions.

    ranks: the actor ranks that get shards at its end. If the recording ends within the step, its last actions are still
    executed.
    """
    num_answers = recording.count(step, worker, "actions")
    found: list[str] = []
    number = num_compared = 0
    observation = next(episodes)
    parts = None
    while parts is None:
        if recording.message(step, worker, "observation", number).exists():
            was = read_message(recording.message(step, worker, "observation", number), Observation)
            found += [f"observation {number}: {line}" for line in differences(was, observation)]
            num_compared += 1
        if number == num_answers:
            return ReplayedStep.from_lines(worker, num_compared, False, found)
        chunk = read_message(recording.message(step, worker, "actions", number), ActionChunk)
        if len(chunk.actions) != len(observation.frames):
            found.append(
                f"observation {number}: {len(chunk.actions)} rows were answered, {len(observation.frames)} ask"
            )
            return ReplayedStep.from_lines(worker, num_compared, True, found)
        number += 1
        try:
            observation = episodes.send(chunk)
        except StopIteration as finished:
            parts = finished.value
    for rank, shard in zip(ranks, parts[1:], strict=True):
        path = recording.message(step, worker, "trajectory", rank)
        if path.exists():
            found += [
                f"trajectory for actor/{rank}: {line}" for line in differences(read_message(path, Trajectory), shard)
            ]
            num_compared += 1
    return ReplayedStep.from_lines(worker, num_compared, True, found)
