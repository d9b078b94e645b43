"""Pictures as pi0 and pi0.5 take them: resized with their aspect kept, padded on both sides, in [-1, 1]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# LeRobot pads pictures in [0, 1] by -1, and then scales them to [-1, 1]. Its policies were trained with that, where
# pictures are no squares. openpi pads by black.
LEROBOT_PADDING, OPENPI_PADDING = -3.0, -1.0


def pixels(images: Tensor, size: int, padding: float) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, size, size], on the device of the images.

    size: pixels per side; padding: the value beside a picture. Bilinear without antialiasing, as in LeRobot.
    """
    x = images.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) / 255.0
    height, width = x.shape[2:]
    inner = height, width
    if inner != (size, size):
        ratio = max(height, width) / size
        inner = int(height / ratio), int(width / ratio)
        x = F.interpolate(x, size=inner, mode="bilinear", align_corners=False)
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    beside = left, size - inner[1] - left, top, size - inner[0] - top
    return F.pad(x * 2.0 - 1.0, beside, value=padding).unflatten(0, images.shape[:2])
