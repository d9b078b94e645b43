"""Pictures for GR00T's VLM: resized, cut out in the middle and resized again, as LeRobot does it.

Its policies are trained in one of two ways, which their folders name: bicubic, or by OpenCV's areas, as Isaac-GR00T has
it from albumentations. Both round to whole numbers after every step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.policies.gr00t.config import Pictures


def pixels(images: Tensor, pictures: Pictures) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, S, S] in [-1, 1], on the device of the images.

    Raises ValueError for pictures that are no squares and would stay so.
    """
    x = images.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32)
    if pictures.letter_box_transform:
        x = _squared(x)
    if pictures.use_albumentations and x.shape[2] != x.shape[3]:
        raise ValueError(f"pictures of {x.shape[3]} x {x.shape[2]} pixels; the policy takes squares (env.image_size)")
    resized = by_area if pictures.use_albumentations else _bicubic
    x = resized(x, pictures.shortest_image_edge or pictures.side)
    if pictures.share < 1.0:
        cut = pictures.share * x.shape[2]
        size = max(1, int(cut) if pictures.use_albumentations else round(cut))
        start = (x.shape[2] - size) // 2
        x = x[:, :, start : start + size, start : start + size]
    x = resized(x, pictures.side)
    return (x / 127.5 - 1.0).unflatten(0, images.shape[:2])


def _squared(x: Tensor) -> Tensor:
    """Put black beside pictures [M, 3, H, W] that are no squares."""
    height, width = x.shape[2:]
    side = max(height, width)
    left = (side - width) // 2
    top = (side - height) // 2
    return F.pad(x, (left, side - width - left, top, side - height - top))


def _bicubic(x: Tensor, side: int) -> Tensor:
    """Resize columns, then rows, each to whole numbers within 0 … 255, as PIL does."""
    for size in ((x.shape[2], side), (side, side)):
        if x.shape[2:] != size:
            x = F.interpolate(x, size=size, mode="bicubic", antialias=True).round().clamp(0.0, 255.0)
    return x


def by_area(x: Tensor, side: int) -> Tensor:
    """Resize squares [M, 3, H, H] -> [M, 3, side, side] as OpenCV's INTER_AREA, in whole numbers."""
    if x.shape[2] == side:
        return x
    weights = _area_weights(x.shape[2], side, x.device)
    return (weights @ x @ weights.t()).round()


def _area_weights(size: int, side: int, device: torch.device) -> Tensor:
    """Return the share of each old pixel in each new one, float32 [side, size].

    A smaller picture's pixel is the mean of what it covers. In a larger one old pixels keep their colour, and are mixed
    only in the new pixel that covers the border between two.
    """
    scale = size / side
    start = torch.arange(side, dtype=torch.float64, device=device)[:, None] * scale
    cells = torch.arange(size, dtype=torch.float64, device=device)
    if scale >= 1.0:
        covered = (torch.minimum(start + scale, cells + 1) - torch.maximum(start, cells)).clamp(min=0.0)
        return (covered / covered.sum(1, keepdim=True)).float()
    first = start.floor()
    beyond = (start / scale + 1.0 - (first + 1.0) / scale).clamp(min=0.0)
    beyond = beyond - beyond.floor()
    weights = (cells == first) * (1.0 - beyond) + (cells == (first + 1.0).clamp(max=size - 1.0)) * beyond
    return weights.float()
