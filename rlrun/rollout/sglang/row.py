"""One row of a request, as SGLang's processes pass it on. Shape legend: N images, H x W pixels, P proprioception."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Row:
    """Example: Row(uint8 (1, 64, 64, 3), float32 (61,), key=7, temperature=1.0)."""

    images: np.ndarray  # uint8 [N, H, W, 3]
    proprio: np.ndarray  # float32 [P]
    key: int  # below 2**64
    temperature: float
