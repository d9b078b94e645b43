"""Detects simulators that are broken: implausible results, and equal faults soon after one another.

Implausible are wrong shapes, and numbers that are not finite or absurd; what a picture shows is for the training step's
warnings. Equal faults soon after one another are a bug of the simulator, which no restart mends.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import RunError

_MANY_TIMES = 10.0  # tolerance: a simulator's declared largest reward describes usual events
NUM_EQUAL = 3  # equal faults that show a bug
SOON = 50  # chunks of each row between two equal faults; rarer ones are infra faults, such as crashes
MAX_LINES = 24  # of the traceback in the message; the log has all of it
BUG = "simulator-bug"  # kind of the error


Place = Callable[[int, int], str]  # of a control step (-1: the last) of a row's chunk: " at control step 3 of seed 4"


def check_frames(frames: Frames, rows: np.ndarray, num_rows: int, num_proprio: int, place: Place) -> None:
    """Raise SimulatorFault if `frames` (of `num_rows` rows) cannot be a robot's observation in `rows` (int [R])."""
    images = frames.images
    proprio = frames.proprio
    if images.dtype != np.uint8 or images.ndim != 5 or len(images) != num_rows or images.shape[-1] != 3:
        raise SimulatorFault(f"images are {images.dtype} {images.shape}, expected uint8 ({num_rows}, N, H, W, 3)")
    if proprio.shape != (num_rows, num_proprio):
        raise SimulatorFault(f"proprioception is {proprio.shape}, expected ({num_rows}, {num_proprio})")
    if len(frames.instructions) != num_rows:
        raise SimulatorFault(f"there are {len(frames.instructions)} instructions for {num_rows} rows")
    if not (is_finite := np.isfinite(proprio[rows])).all():
        index, number = np.argwhere(~is_finite)[0].tolist()
        row = int(rows[index])
        raise SimulatorFault(f"proprioception {number} is {proprio[row, number]}{place(row, -1)}")


def reward_limit(declared: float | None, configured: float | None) -> float:
    """Return the largest absolute reward of a control step that is plausible.

    declared: by the simulator, see `VectorEnv.largest_reward`. configured: `env.max_abs_reward`. None: no such limit.
    """
    limits = [_MANY_TIMES * declared] if declared is not None else []
    return min([*limits, *([configured] if configured is not None else [])], default=float("inf"))


def check_result(
    result: ChunkResult, active: np.ndarray, num_steps: int, num_proprio: int, largest_reward: float, place: Place
) -> None:
    """Check a chunk in the rows of `active` (bool [B]); rows with an infra fault may contain anything.

    largest_reward: see `reward_limit`.
    """
    num_rows = len(active)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("rewards", "step_valid"), (num_rows, num_steps))
    flags = ("terminated", "truncated", "success", "infra_fault")
    shapes |= dict.fromkeys((*flags, "q_score"), (num_rows,))
    for name, shape in shapes.items():
        if (actual := np.shape(getattr(result, name))) != shape:
            raise SimulatorFault(f"{name} are {actual}, expected {shape}")
    for name in ("step_valid", *flags):
        if (dtype := getattr(result, name).dtype).kind != "b":
            raise SimulatorFault(f"{name} are {dtype}, expected bool")
    rows = np.flatnonzero(active & ~result.infra_fault)
    if not (is_finite := np.isfinite(result.rewards[rows])).all():
        index, step = np.argwhere(~is_finite)[0].tolist()
        row = int(rows[index])
        raise SimulatorFault(f"reward is {result.rewards[row, step]}{place(row, step)}")
    if not np.isfinite(result.q_score[rows]).all():
        row = int(rows[~np.isfinite(result.q_score[rows])][0])
        raise SimulatorFault(f"q-score is {result.q_score[row]}{place(row, -1)}")
    if (both := rows[(result.terminated & result.truncated)[rows]]).size:
        raise SimulatorFault(f"an episode is both terminated and truncated{place(int(both[0]), -1)}")
    if (gaps := rows[(np.diff(result.step_valid[rows].astype(np.int8), axis=1) > 0).any(axis=1)]).size:
        raise SimulatorFault(f"control steps are valid after invalid ones{place(int(gaps[0]), -1)}")
    _check_size(result.rewards, rows, largest_reward)
    check_frames(result.frames, rows, num_rows, num_proprio, place)


def _check_size(rewards: np.ndarray, rows: np.ndarray, largest: float) -> None:
    """Raise SimulatorFault for too large rewards; rewards: float [B, C], finite in `rows`."""
    sizes = np.abs(rewards[rows])
    if sizes.size and sizes.max() > largest:
        row, step = np.unravel_index(sizes.argmax(), sizes.shape)
        raise SimulatorFault(
            f"a reward of {rewards[rows[row], step]:.3g} in row {rows[row]}: more than {largest:g}, the most that this "
            "world can mean (env.max_abs_reward)"
        )


class RepeatedFaults:
    """Counts equal faults. Completed chunks between them make them forgotten."""

    def __init__(self, num_rows: int, needed_first: int = NUM_EQUAL):
        """needed_first: equal faults that show a bug as long as no row has completed a chunk."""
        self._num_rows = num_rows
        self._needed_first = needed_first
        self._num_completed = 0  # chunks of all rows
        self._seen: dict[str, list[int]] = {}  # by signature: the chunks completed at each fault that counts

    def completed(self, num_rows: int) -> None:
        """Note that so many rows have completed a chunk."""
        self._num_completed += num_rows

    def add(self, fault: Exception) -> None:
        """Count a fault. Raises RunError, with the traceback, if it is one too many of its like."""
        signature = _signature(fault)
        now = self._num_completed
        before = self._seen.get(signature, [])
        is_soon = bool(before) and now - before[-1] <= SOON * self._num_rows
        self._seen[signature] = counted = [*before, now] if is_soon else [now]
        if len(counted) >= (NUM_EQUAL if now else self._needed_first):
            raise _bug(fault, len(counted), now - counted[0])


def place_of(fault: Exception) -> str:
    """Return the place of an error in code that is not rlrun's. Example: " (world.py:34)"; "" if rlrun's checks did."""
    frames = traceback.extract_tb(fault.__traceback__)
    if isinstance(fault, SimulatorFault) or not frames:
        return ""
    return f" ({frames[-1].filename}:{frames[-1].lineno})"


def _signature(fault: Exception) -> str:
    """Return the key of equal faults: type, message (without its place in an episode), and the line that raised."""
    frames = traceback.extract_tb(fault.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(fault).__name__}: {str(fault).partition(' at control step ')[0]} {place}"


def _bug(fault: Exception, count: int, num_chunks: int) -> RunError:
    text = "".join(traceback.format_exception(fault)).rstrip()
    return RunError(
        f"The simulator breaks in the same way again and again: {count} equal faults within {num_chunks} chunks.",
        key="env.simulator",
        cause="\n".join(text.splitlines()[-MAX_LINES:]),
        remedy="Repair the simulator; `rlrun check-simulator` with the same arguments repeats the fault.",
        kind=BUG,
    )
