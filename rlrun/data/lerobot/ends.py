"""Ends of a dataset's episodes: which are terminal, and which a time limit cut off.

LeRobot writes next.done at the end of every episode. Only a terminal end has no future, so that its value is 0.
"""

from __future__ import annotations

import numpy as np

from rlrun.data.lerobot.frames import FrameTable


def terminal_frames(frames: FrameTable, time_limit: int | None) -> tuple[np.ndarray, list[str]]:
    """Return bool [F], the frames with next.done that no time limit caused, and sentences on ends that are in doubt.

    time_limit: demos.time_limit. An end with success is terminal, however long its episode is.
    """
    last = np.cumsum(frames.lengths) - 1
    has_ended = frames.done[last]
    success = [row.success for row in frames.episodes]
    has_failed = has_ended & np.array([succeeded is False for succeeded in success])
    if time_limit is None:
        is_cut = _looks_cut_off(frames.lengths, has_ended, has_failed, is_known=None not in success)
    else:
        has_succeeded = np.array([succeeded is True for succeeded in success], bool)
        is_cut = has_ended & ~has_succeeded & (frames.lengths >= max(1, time_limit)) & (time_limit > 0)
    done = frames.done.copy()
    done[last[is_cut]] = False
    return done, _told(frames.lengths, has_failed & ~is_cut, is_cut, time_limit)


def _looks_cut_off(lengths: np.ndarray, has_ended: np.ndarray, has_failed: np.ndarray, is_known: bool) -> np.ndarray:
    """Return bool [E]: ends that are those of a time limit by their lengths.

    At least two episodes failed after the same number of frames, and none is longer. If success is unknown, all
    episodes must have one length.
    """
    longest = lengths == lengths.max(initial=0)
    if not is_known:
        return has_ended & (longest.all() and has_ended.sum() > 1)
    return has_failed & longest & ((has_failed & longest).sum() > 1)


def _told(lengths: np.ndarray, has_failed: np.ndarray, is_cut: np.ndarray, time_limit: int | None) -> list[str]:
    told = []
    if is_cut.any() and time_limit is None:
        told.append(
            f"{is_cut.sum()} of {len(lengths)} episodes end with next.done, without success and all after "
            f"{lengths[is_cut][0]} frames: they count as cut off by a time limit, not as terminal; demos.time_limit=0 "
            "takes next.done as it is."
        )
    if has_failed.any() and time_limit is None:
        told.append(
            f"{has_failed.sum()} of {len(lengths)} episodes end with next.done and without success: they count as "
            "terminal; demos.time_limit=FRAMES names the length at which episodes are cut off."
        )
    return told
