"""Times of a dataset's frames: those that cannot be right are corrected or replaced, and the user is told.

LeRobot counts a frame's timestamp from the start of its episode. Recorders also count from the start of the recording,
count in milliseconds, or write one number into every row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlrun.data.lerobot.tables import EpisodeRow
from rlrun.system.text import first_of

_FACTORS = {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
_SHOWN = 3  # episodes named in a sentence
_TOLERANCE = 0.1  # relative, of a step against the frame rate


def since_begin(
    time_s: np.ndarray, step: np.ndarray, lengths: np.ndarray, episodes: Sequence[EpisodeRow], fps: float
) -> tuple[np.ndarray, list[str]]:
    """Return the times since the begin of each episode, float64 [F], and sentences on what was not taken as stored.

    time_s: the column timestamp, NaN: it has none; step: frame_index. Frames are ordered by episode and step.
    """
    by_step = step / fps
    times = np.where(np.isfinite(time_s), time_s, by_step)
    times, told = _in_seconds(times, lengths, fps)
    is_stuck = []
    is_late = []
    ends = np.cumsum(lengths)
    # Where episodes begin at one place of one video, times from the start of the recording are what finds the frames.
    sharing = Counter(part for row in episodes for part in row.videos.values())
    for at, (begin, end) in enumerate(zip(ends - lengths, ends, strict=True)):
        own = slice(begin, end)
        if end - begin > 1 and np.ptp(times[own]) < 0.5 / fps:
            times[own] = by_step[own]
            is_stuck.append(at)
        elif min(abs(times[begin]), abs(times[begin] - by_step[begin])) > 0.5 / fps:
            if any(sharing[part] > 1 for part in episodes[at].videos.values()):
                continue
            times[own] -= times[begin] - by_step[begin]
            is_late.append(at)
    if is_stuck:
        which = _episodes(is_stuck, episodes)
        told.append(f"The column timestamp does not move in {which}: frame_index and fps give the times instead.")
    if is_late:
        which = _episodes(is_late, episodes)
        told.append(f"The column timestamp does not begin at 0 in {which}: it is taken from the start of the episode.")
    return times, told + list(_disagreement(times, lengths, fps))


def repeated_steps(step: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return a sentence if frames of an episode have the same frame_index."""
    inside = _inside_episodes(lengths)
    count = int((np.diff(step)[inside] == 0).sum())
    if not count:
        return []
    return [f"{count} frames have the frame_index of the frame before: they are read in the order of the file."]


def _in_seconds(times: np.ndarray, lengths: np.ndarray, fps: float) -> tuple[np.ndarray, list[str]]:
    """Return the times in seconds if the steps between frames fit another unit."""
    steps = np.diff(times)[_inside_episodes(lengths)]
    middle = float(np.median(steps)) if len(steps) else 0.0
    for factor, unit in _FACTORS.items():
        if abs(middle * fps / factor - 1) < _TOLERANCE:
            return times / factor, [f"The column timestamp counts {unit}: it is divided by {factor:g}."]
    return times, []


def _disagreement(times: np.ndarray, lengths: np.ndarray, fps: float) -> list[str]:
    """Return a sentence if the steps between frames disagree with the frame rate."""
    steps = np.diff(times)[_inside_episodes(lengths)]
    wrong = np.abs(steps * fps - 1) > _TOLERANCE
    if not wrong.any():
        return []
    middle = float(np.median(steps))
    rate = f"{1 / middle:.4g}" if middle > 0 and math.isfinite(1 / middle) else "no"
    return [
        f"The column timestamp disagrees with fps {fps:g} of info.json at {wrong.sum()} of {len(steps)} frames: the "
        f"median step is {middle:.4g} s ({rate} frames per second)."
    ]


def _inside_episodes(lengths: np.ndarray) -> np.ndarray:
    """Return bool [F-1]: whether a step leads to a frame of the same episode."""
    inside = np.ones(max(0, int(lengths.sum()) - 1), bool)
    inside[np.cumsum(lengths)[:-1] - 1] = False
    return inside


def _episodes(chosen: Sequence[int], episodes: Sequence[EpisodeRow]) -> str:
    names = [str(episodes[at].index) for at in chosen]
    return f"{'episode' if len(chosen) == 1 else 'episodes'} {first_of(names, _SHOWN)}"
