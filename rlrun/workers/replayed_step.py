"""One recorded training step done again by one half of the system, and where it departs from the recording."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice

from rlrun.data.differences import differences
from rlrun.data.messages import ActionChunk, Observation, Trajectory
from rlrun.data.recording import Recording, read_message

_MAX_LINES = 20  # of differences; what follows from the first ones is told by their number


@dataclass(frozen=True)
class ReplayedStep:
    """worker -> driver: what a recorded step came to.

    Example: ReplayedStep("env/0", 17, True, ("answer 5: frames.images: 12 of 24576 differ, …",), 9)
    """

    worker: str
    num_compared: int  # messages
    is_whole: bool  # False: the recording ends within the step, and so did the replay
    lines: tuple[str, ...]  # the first differences, in the order in which they came
    num_differences: int


def converse_again(
    talk: Generator[Observation, ActionChunk, tuple], recording: Recording, step: int, worker: str, ranks: range
) -> ReplayedStep:
    """Let an env worker's conversation go on as recorded: every observation is answered with the recorded actions.

    ranks: the actor ranks whose shards it ends with. Where the recording ends within the step, its last actions are
    still carried out.
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
            return _told(worker, num_compared, False, found)
        chunk = read_message(recording.message(step, worker, "actions", number), ActionChunk)
        if len(chunk.actions) != len(observation.frames):
            found.append(
                f"observation {number}: {len(chunk.actions)} rows were answered, {len(observation.frames)} ask"
            )
            return _told(worker, num_compared, True, found)
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
    return _told(worker, num_compared, True, found)


def _told(worker: str, num_compared: int, is_whole: bool, found: list[str]) -> ReplayedStep:
    return ReplayedStep(worker, num_compared, is_whole, tuple(islice(found, _MAX_LINES)), len(found))
