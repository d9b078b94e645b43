"""Pictures as SmolVLA takes them: resized with their aspect kept, padded at the left and the top, in [-1, 1]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def pixels(images: Tensor, size: int | None) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, size, size], on the device of the images.

    size: pixels per side; None: no resizing. Padding is black (-1). Bilinear without antialiasing, as in LeRobot.
    """
    x = images.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) / 255.0
    height, width = x.shape[2:]
    if size is not None and (height, width) != (size, size):
        ratio = max(height, width) / size
        inner = (int(height / ratio), int(width / ratio))
        x = F.interpolate(x, size=inner, mode="bilinear", align_corners=False)
        x = F.pad(x, (size - inner[1], 0, size - inner[0], 0))
    return (x * 2.0 - 1.0).unflatten(0, images.shape[:2])
