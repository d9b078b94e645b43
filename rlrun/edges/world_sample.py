"""What a world shows at a few starts, and how it answers the actions of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class WorldSample:
    """env worker -> driver: R starts, in each of which K control steps were made with given actions.

    Example: R=8, K=8, one 64 px camera, P=61: images (8, 1, 64, 64, 3), proprio (8, 9, 61), rewards (8, 8)
    """

    images: np.ndarray  # uint8 [R, N, H, W, 3], at the start
    last_images: np.ndarray  # uint8 [R, N, H, W, 3], after the last of these control steps that the row ran
    proprio: np.ndarray  # float32 [R, K+1, P]; NaN after the end of an episode
    rewards: np.ndarray  # float32 [R, K]; NaN after the end of an episode
    varies: (
        np.ndarray
    )  # bool [P]: numbers of the state that are not the same in all starts, steps, and by chance actions
