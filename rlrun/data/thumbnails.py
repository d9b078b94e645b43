"""Small copies of pictures for comparisons, their eight orientations and two orders of colours."""

from __future__ import annotations

import numpy as np

THUMBNAIL = 32  # pixels of a side
FLAT_LEVELS = 2  # of 255: a picture with less between its darkest and brightest value shows nothing
NOISE_LEVELS = 12  # of 255: smaller differences may be those of a video's compression
# changes of demos.keys.pictures that make up all orientations and orders of colours, and what the picture then is
ORIENTATIONS: dict[tuple[str, ...], str] = {
    (): "",
    ("rotate_180",): "turned by 180 degrees",
    ("mirror",): "mirrored",
    ("mirror", "rotate_180"): "upside down",
    ("rotate_90",): "turned by 90 degrees",
    ("rotate_270",): "turned by 270 degrees",
    ("mirror", "rotate_90"): "mirrored and turned by 90 degrees",
    ("mirror", "rotate_270"): "mirrored and turned by 270 degrees",
}
SWAP = "swap_red_blue"


def thumbnail(picture: np.ndarray) -> np.ndarray:
    """Shrink uint8 [H, W, 3] to uint8 [THUMBNAIL, THUMBNAIL, 3]."""
    from PIL import Image

    small = Image.fromarray(np.ascontiguousarray(picture)).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small)


def spread(pictures: np.ndarray) -> np.ndarray:
    """Return the difference of the largest and the smallest value of uint8 [..., H, W, 3], in each channel at most."""
    values = pictures.reshape(*pictures.shape[:-3], -1, 3).astype(np.int16)
    return np.ptp(values, axis=-2).max(-1)


def differences(pictures: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the largest absolute difference of each pair of pictures, uint8 [..., H, W, 3] each."""
    return np.abs(pictures.astype(np.int16) - others.astype(np.int16)).max((-3, -2, -1))


def likeness(pictures: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the correlation of each of M thumbnails with each of K others, float [M, K]; 0 for flat ones."""
    ours, theirs = (_normalized(part) for part in (pictures, others))
    return ours @ theirs.T


def _normalized(pictures: np.ndarray) -> np.ndarray:
    flat = pictures.reshape(len(pictures), -1).astype(np.float64)
    flat -= flat.mean(1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
