"""One episode on its way into a dataset: compressed by the worker that recorded it, a file until all are joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from rlrun.data.lerobot import layout
from rlrun.data.lerobot.layout import DemoFeatures
from rlrun.data.lerobot.statistics import ImageMoments


@dataclass(frozen=True, eq=False)
class Film:
    """L pictures of one camera.

    Example: 60 frames of 64 px: data of some 200 kB, sizes (60,).
    """

    data: np.ndarray  # uint8, PNG files one behind the other
    sizes: np.ndarray  # int64 [L], bytes of each
    moments: ImageMoments

    @classmethod
    def of(cls, frames: np.ndarray) -> Self:
        """frames: uint8 [L, H, W, 3]."""
        pictures = [layout.encode_png(frame) for frame in frames]
        moments = ImageMoments()
        moments.add(frames)
        return cls(np.frombuffer(b"".join(pictures), np.uint8), np.array([len(p) for p in pictures]), moments)

    def pictures(self) -> list[bytes]:
        """L PNG files."""
        return [part.tobytes() for part in np.split(self.data, np.cumsum(self.sizes)[:-1])]


@dataclass(frozen=True, eq=False)
class Episode:
    """env worker -> dataset: L frames; frame i is what the robot saw before it took action i.

    Example: Episode(features, proprio (60, 61), actions (60, 8), films of one camera, "turn on the radio", True, 17)
    """

    features: DemoFeatures
    proprio: np.ndarray  # float32 [L, P]
    actions: np.ndarray  # float32 [L, A], simulator units
    films: tuple[Film, ...]  # of N cameras
    instruction: str
    success: bool
    seed: int

    @classmethod
    def of(
        cls,
        features: DemoFeatures,
        images: np.ndarray,
        proprio: np.ndarray,
        actions: np.ndarray,
        instruction: str,
        success: bool,
        seed: int,
    ) -> Self:
        """images: uint8 [L, N, H, W, 3]. Raises ValueError naming the array that is unlike the features."""
        _check(features, images, proprio, actions)
        films = tuple(Film.of(images[:, camera]) for camera in range(images.shape[1]))
        return cls(features, proprio, actions, films, instruction, bool(success), int(seed))


def _check(features: DemoFeatures, images: np.ndarray, proprio: np.ndarray, actions: np.ndarray) -> None:
    f, length = features, len(actions)
    wanted = {
        "images": (images, np.uint8, (length, len(f.cameras), f.height, f.width, 3)),
        "proprio": (proprio, np.float32, (length, f.num_proprio)),
        "actions": (actions, np.float32, (length, len(f.action_names))),
    }
    for name, (array, dtype, shape) in wanted.items():
        if array.dtype != dtype or array.shape != shape or not length:
            raise ValueError(f"{name} is {array.dtype} {array.shape}, the dataset holds {np.dtype(dtype)} {shape}")
        if dtype is np.float32 and not np.isfinite(array).all():
            raise ValueError(f"{name} holds a NaN or an infinity; this episode must not become a demonstration")
