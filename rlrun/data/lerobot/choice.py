"""The episodes of a dataset that are imitated: demos.episodes and demos.only_successful."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.lerobot import layout
from rlrun.data.lerobot.frames import FRAME_SUCCESS, Frames, read_frames
from rlrun.data.lerobot.layout import DatasetError
from rlrun.data.lerobot.tables import DatasetFiles, EpisodeRow

if TYPE_CHECKING:
    from rlrun.config.schema import DemosConfig


def chosen(files: DatasetFiles, demos: DemosConfig) -> tuple[Frames, list[str]]:
    """Read the frames of the chosen episodes. Returns them and sentences on the others. Raises DatasetError."""
    rows = by_index(files, demos.episodes)
    remarks = [] if len(rows) == len(files.episodes) else [_left(len(files.episodes) - len(rows), "demos.episodes")]
    is_known = all(row.success is not None for row in rows)
    if is_known and demos.only_successful:
        rows, failed = [row for row in rows if row.success], [row for row in rows if not row.success]
        remarks += [_left(len(failed), "demos.only_successful=true")] if failed else []
        _require_some(files, rows)
    frames = read_frames(files, rows)
    if not is_known:
        frames = _judged_by_frames(files, frames, is_needed=demos.only_successful)
        if demos.only_successful and not all(row.success for row in frames.episodes):
            failed = [row for row in frames.episodes if not row.success]
            remarks.append(_left(len(failed), "demos.only_successful=true"))
            successful = [row for row in frames.episodes if row.success]
            _require_some(files, successful)
            frames = read_frames(files, successful)
    num_failed = sum(row.success is False for row in frames.episodes)
    if num_failed:
        remarks.append(
            f"{num_failed} of {len(frames.episodes)} episodes did not succeed, and are imitated like the others; "
            "demos.only_successful=true leaves them out."
        )
    return frames, remarks


def by_index(files: DatasetFiles, episodes: Sequence[int] | str | None) -> list[EpisodeRow]:
    """Return the episodes that demos.episodes names: indices, or a range "10:50" of them; None: all."""
    rows = files.episodes
    if episodes is None:
        return rows
    if isinstance(episodes, str):
        begin, _, end = episodes.partition(":")
        taken = [row for row in rows if int(begin or 0) <= row.index < int(end or layout.MAX_ROWS)]
    else:
        known = {row.index: row for row in rows}
        absent = [index for index in episodes if index not in known]
        if absent:
            cause = f"demos.episodes names {absent[0]}, and there is no such episode_index"
            raise DatasetError(files.folder, cause, _of_these(rows))
        taken = [known[index] for index in sorted(set(episodes))]
    if not taken:
        raise DatasetError(files.folder, f"demos.episodes={episodes} names no episode of it", _of_these(rows))
    return taken


def _of_these(rows: list[EpisodeRow]) -> str:
    return f"name some of its {len(rows)} episodes, whose episode_index is from {rows[0].index} to {rows[-1].index}"


def _left(count: int, key: str) -> str:
    return f"{count} episode{'s are' if count > 1 else ' is'} left out by {key}."


def _judged_by_frames(files: DatasetFiles, frames: Frames, is_needed: bool) -> Frames:
    """Take the success of each episode from the feature next.success: of any of its frames."""
    from dataclasses import replace

    if FRAME_SUCCESS not in files.info["features"]:
        if is_needed:
            cause = (
                "demos.only_successful is true, and neither meta/episodes has a column success nor data/ next.success"
            )
            raise DatasetError(files.folder, cause, "set demos.only_successful=false, and choose by demos.episodes")
        return frames
    begins = np.cumsum(frames.lengths) - frames.lengths
    success = np.logical_or.reduceat(frames.success, begins)
    rows = [replace(row, success=bool(found)) for row, found in zip(frames.episodes, success, strict=True)]
    return replace(frames, episodes=tuple(rows))


def _require_some(files: DatasetFiles, rows: list[EpisodeRow]) -> None:
    if not rows:
        cause = "demos.only_successful is true, and none of the chosen episodes succeeded"
        raise DatasetError(files.folder, cause, "set demos.only_successful=false, or choose others by demos.episodes")
