"""Declared changes of a dataset as it is read: factors and offsets of numbers, orientation and colours of pictures.

Everything that is computed from the dataset, such as statistics, is computed after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data.lerobot.layout import DatasetError

if TYPE_CHECKING:
    from rlrun.config.schema import DemoKeysConfig
    from rlrun.data.lerobot.frames import FrameTable
    from rlrun.data.lerobot.layout import Roles
    from rlrun.data.lerobot.pictures import PictureSource

# counterclockwise, as numpy turns
PICTURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rotate_90": lambda pictures: np.rot90(pictures, 1, (-3, -2)),
    "rotate_180": lambda pictures: np.rot90(pictures, 2, (-3, -2)),
    "rotate_270": lambda pictures: np.rot90(pictures, 3, (-3, -2)),
    "mirror": lambda pictures: pictures[..., ::-1, :],
    "swap_red_blue": lambda pictures: pictures[..., ::-1],
}
_SIDEWAYS = ("rotate_90", "rotate_270")


def change_numbers(frames: FrameTable, roles: Roles, keys: DemoKeysConfig, path: Path) -> list[str]:
    """Multiply numbers of the frames, in place, then add the offsets. Returns a sentence on each. Raises DatasetError.

    path: the file that errors name.
    """
    told = []
    for name in dict.fromkeys((*keys.scale, *keys.offset)):
        role, _, which = str(name).partition("/")
        vector = roles.action if role == "action" else roles.state
        values = {"action": frames.action, "state": frames.state, "reward": frames.reward[:, None]}[role]
        at = _column(which, values.shape[1], vector.names if vector and role != "reward" else (), name, path)
        factor = float(keys.scale.get(name, 1.0))
        offset = float(keys.offset.get(name, 0.0))
        values[:, at] *= np.float32(factor)
        values[:, at] += np.float32(offset)
        sign = "-" if offset < 0 else "+"
        told.append(f"{name} is multiplied by {factor:g}{f' {sign} {abs(offset):g}' if offset else ''} (demos.keys).")
    return told


def _column(which: str, size: int, names: Sequence[str], name: str, path: Path) -> slice:
    """Return the columns of a declared name; all of them without a number or name behind the role."""
    if which == "" and "/" not in name and size:
        return slice(None)
    index = names.index(which) if which in names else int(which) if which.isdecimal() else size
    if index >= size:
        known = f"; their names: {', '.join(names)}" if names else ""
        cause = f"demos.keys names {name}, and the dataset has {size} such numbers, from 0{known}"
        raise DatasetError(path, cause, "name one of them in demos.keys.scale and demos.keys.offset")
    return slice(index, index + 1)


def changed_sources(
    sources: Sequence[PictureSource], cameras: Sequence[str], declared: Mapping[str, list[str]], path: Path
) -> tuple[list[PictureSource], list[str]]:
    """Return the sources of the cameras with their declared changes, and a sentence on each. Raises DatasetError."""
    for name in declared:
        if name not in cameras:
            cause = f"demos.keys.pictures names {name}, and its cameras are {', '.join(cameras) or 'none'}"
            raise DatasetError(path, cause, "name one of them there")
    changed = [
        ChangedPictures(source, declared[name]) if name in declared else source
        for source, name in zip(sources, cameras, strict=True)
    ]
    return changed, [f"pictures of {name}: {', '.join(steps)} (demos.keys)." for name, steps in declared.items()]


class ChangedPictures:
    """Pictures of one camera, turned, mirrored or with red and blue exchanged."""

    def __init__(self, source: PictureSource, changes: Sequence[str]):
        """changes: keys of PICTURES, in the order in which they are made."""
        self._source = source
        self._changes = tuple(changes)

    def size(self) -> tuple[int, int]:
        """Return height and width after the changes."""
        height, width = self._source.size()
        is_sideways = sum(change in _SIDEWAYS for change in self._changes) % 2 == 1
        return (width, height) if is_sideways else (height, width)

    def read(self, frames: np.ndarray, out: np.ndarray) -> None:
        """Read and change pictures; see PictureSource."""
        height, width = out.shape[1:3]
        is_sideways = self.size() != self._source.size()
        read = np.empty((len(out), width, height, 3) if is_sideways else out.shape, np.uint8)
        self._source.read(frames, read)
        for change in self._changes:
            read = PICTURES[change](read)
        out[:] = read

    def check(self) -> Iterator[str]:
        """Check the stored pictures; see PictureSource."""
        return self._source.check()


def changed_stats(stats: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a camera's statistics after its changes: those of red and blue are exchanged."""
    if changes.count("swap_red_blue") % 2 == 0:
        return dict(stats)
    return {name: value[::-1] if name != "count" else value for name, value in stats.items()}
