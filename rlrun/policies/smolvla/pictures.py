from __future__ import annotations
from torch import Tensor


def pixels(images: Tensor, size: int) -> Tensor:
    assert images.shape[2:4] == (size, size)
    return images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0
