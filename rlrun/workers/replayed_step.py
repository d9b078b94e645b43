"""Replay of a recorded training step by one half of the system, compared with the recording."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice

from rlrun.data.messages import ActionChunk, Observation, Trajectory
from rlrun.data.recording import Recording, differences, read_message

_MAX_LINES = 20  # differences in the result; further ones are only counted


@dataclass(frozen=True)
class ReplayedStep:
    """worker -> driver: the result of a replayed step.

    Example: ReplayedStep("env/0", 17, True, ("answer 5: frames.images: 12 of 24576 differ, …",), 9)
    """

    worker: str
    num_compared: int  # messages
    is_whole: bool  # False: the recording, and therefore the replay, ends within the step
    lines: tuple[str, ...]  # the first differences, in order of occurrence
    num_differences: int


def converse_again(
    talk: Generator[Observation, ActionChunk, tuple], recording: Recording, step: int, worker: str, ranks: range
) -> ReplayedStep:
    """Replay an env worker's step: answer every observation with the recorded actions.

    ranks: the actor ranks that get shards at its end. If the recording ends within the step, its last actions are still
    executed.
    """
    num_answers = recording.count(step, worker, "actions")
    found: list[str] = []
    number = num_compared = 0
    observation, parts = next(talk), None
    while parts is None:
        if recording.message(step, worker, "observation", number).exists():
            was = read_message(recording.message(step, worker, "observation", number), Observation)
            found += [f"observation {number}: {line}" for line in differences(was, observation)]
            num_compared += 1
        if number == num_answers:
            return _result(worker, num_compared, False, found)
        chunk = read_message(recording.message(step, worker, "actions", number), ActionChunk)
        if len(chunk.actions) != len(observation.frames):
            found.append(
                f"observation {number}: {len(chunk.actions)} rows were answered, {len(observation.frames)} ask"
            )
            return _result(worker, num_compared, True, found)
        number += 1
        try:
            observation = talk.send(chunk)
        except StopIteration as finished:
            parts = finished.value
    for rank, shard in zip(ranks, parts[1:], strict=True):
        path = recording.message(step, worker, "trajectory", rank)
        if path.exists():
            found += [
                f"trajectory for actor/{rank}: {line}" for line in differences(read_message(path, Trajectory), shard)
            ]
            num_compared += 1
    return _result(worker, num_compared, True, found)


def _result(worker: str, num_compared: int, is_whole: bool, found: list[str]) -> ReplayedStep:
    return ReplayedStep(worker, num_compared, is_whole, tuple(islice(found, _MAX_LINES)), len(found))
