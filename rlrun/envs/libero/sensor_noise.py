"""LIBERO-Plus's sensor noise: fifty blurs and fogs of a picture, equal to its package's to the bit with one NumPy.

Written from what ImageMagick, SciPy and the corruptions of ImageNet-C compute, since the interpreters of env workers
have none of them. Sums are taken in their order: pictures have flat areas, in which one rounding changes a grey level.
Pictures are square, uint8 [256, 256, 3], with the bottom row first, as OpenGL returns them.
"""

from __future__ import annotations

import math

import numpy as np

SIZE = 256  # pixels to a side of the pictures that noise is added to
KINDS = 5
SEVERITIES = 10  # of each kind
MOTION = ((5, 2), (8, 3), (10, 4), (12, 5), (15, 6), (18, 8), (20, 10), (25, 12), (30, 15), (35, 20))  # radius, sigma
# largest factor and the step to it
ZOOM = (
    *((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    *((1.36, 0.01), (1.41, 0.01), (1.46, 0.02), (1.51, 0.02), (1.56, 0.03)),
)
# thickness, and how fast finer structures of it fade
FOG = (
    *((0.5, 3), (1.0, 2.8), (1.5, 2.5), (2.0, 2.2), (2.5, 2.0)),
    *((3.0, 1.8), (3.5, 1.6), (4.0, 1.5), (4.5, 1.4), (5.0, 1.3)),
)
# sigma, farthest pixel, repetitions
GLASS = (
    *((0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1.0, 2, 2), (1.1, 3, 2)),
    *((1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2), (2.2, 5, 1), (2.5, 5, 1)),
)
GLASS_SIZE = 224  # pixels of each axis that glass moves, whatever the size of the picture
LARGEST_ANGLE = 45  # degrees, of a motion
PER_LEVEL = 257  # of ImageMagick's 65,536 levels, for one of 256
FOG_WIBBLE = 100
TRUNCATED_AT = 4.0  # standard deviations of a Gaussian


def noisy(picture: np.ndarray, number: int, draw: np.random.RandomState) -> np.ndarray:
    """Return the picture with noise `number`, 1 to 50: ten severities each of motion, blur, zoom, fog and glass.

    draw: NumPy's older generator, whose numbers LIBERO-Plus takes. Raises ValueError for another size or number.
    """
    if picture.shape != (SIZE, SIZE, 3) or not 1 <= number <= KINDS * SEVERITIES:
        raise ValueError(f"noise {number} of a picture of {picture.shape}")
    kind, severity = divmod(number - 1, SEVERITIES)
    if kind == 0:
        return _moved(picture, *MOTION[severity], draw.uniform(-LARGEST_ANGLE, LARGEST_ANGLE))
    if kind == 1:
        return _as_pixels(_blurred(picture / 255.0, severity + 1))
    if kind == 2:
        return _as_pixels(_zoomed_out(picture, *ZOOM[severity]))
    if kind == 3:
        thickness, fading = FOG[severity]
        return _as_pixels(_fogged(picture / 255.0, thickness, fading, draw))
    return _as_pixels(_behind_glass(picture, *GLASS[severity], draw))


def _as_pixels(picture: np.ndarray) -> np.ndarray:
    return (np.clip(picture, 0, 1) * 255).astype(np.uint8)  # LIBERO-Plus cuts fractions off


def _moved(picture: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Blur by a motion to one side, as ImageMagick 6 does with 16 bits a channel, of which it then cuts 8 off."""
    at = np.arange(2 * radius + 1)
    weights = np.exp(-(at * at) / (2.0 * sigma * sigma)) / (math.sqrt(2 * math.pi) * sigma)
    weights /= np.add.accumulate(weights)[-1]
    turn = math.radians(angle)
    wide = len(at) * math.cos(turn)
    high = len(at) * math.sin(turn)
    length = math.hypot(high, wide)
    levels = picture.astype(np.float64) * PER_LEVEL
    total = np.zeros(picture.shape)
    rows = np.arange(SIZE)
    for k in at.tolist():
        down = rows + math.ceil(k * high / length - 0.5)
        right = rows + math.ceil(k * wide / length - 0.5)
        total += weights[k] * levels[np.clip(down, 0, SIZE - 1)][:, np.clip(right, 0, SIZE - 1)]
    return ((total + 0.5).astype(np.int64) // PER_LEVEL).astype(np.uint8)


def _blurred(picture: np.ndarray, sigma: float) -> np.ndarray:
    """Blur each channel by a Gaussian; the outermost pixels go on beyond the edge. float64 in and out."""
    reach = int(TRUNCATED_AT * sigma + 0.5)
    at = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 / (sigma * sigma) * at**2)
    weights /= weights.sum()
    for axis in (0, 1):
        padding = [(reach, reach) if axis == one else (0, 0) for one in range(3)]
        wide = np.pad(picture, padding, mode="edge")
        size = picture.shape[axis]

        def shifted(by: int, wide: np.ndarray = wide, axis: int = axis, size: int = size) -> np.ndarray:
            return wide[by : by + size] if axis == 0 else wide[:, by : by + size]

        picture = shifted(reach) * weights[reach]
        for k in range(reach):  # SciPy's order, from the farthest pair inwards
            picture = picture + (shifted(k) + shifted(2 * reach - k)) * weights[k]
    return picture


def _zoomed_out(picture: np.ndarray, end: float, step: float) -> np.ndarray:
    """Return the mean of the picture and of its middles at growing factors, float32."""
    seen = (picture / 255.0).astype(np.float32)
    factors = np.arange(1, end, step)
    total = np.zeros_like(seen)
    for factor in factors:
        total += _magnified(seen, float(factor))
    return (seen + total) / (len(factors) + 1)


def _magnified(picture: np.ndarray, factor: float) -> np.ndarray:
    """Return the picture's middle, magnified linearly to its size; float32."""
    size = len(picture)
    part = math.ceil(size / factor)
    first = (size - part) // 2
    large = _stretched(picture[first : first + part, first : first + part], round(part * factor))
    first = (len(large) - size) // 2
    return large[first : first + size, first : first + size]


def _stretched(picture: np.ndarray, size: int) -> np.ndarray:
    """Return [size, size, 3], interpolated linearly; what rounding puts outside of the picture is black."""
    last = len(picture) - 1
    at = np.arange(size) * (last / (size - 1))
    is_inside = at <= last
    low = np.floor(np.minimum(at, last)).astype(int)
    high = np.minimum(low + 1, last)
    far = np.minimum(at, last) - low
    values = picture.astype(np.float64)
    total = np.zeros((size, size, 3))
    for rows, tall in ((low, 1.0 - far), (high, far)):
        for columns, wide in ((low, 1.0 - far), (high, far)):
            total += values[rows][:, columns] * tall[:, None, None] * wide[None, :, None]
    total[~is_inside] = 0.0
    total[:, ~is_inside] = 0.0
    return total.astype(np.float32)


def _fogged(picture: np.ndarray, thickness: float, fading: float, draw: np.random.RandomState) -> np.ndarray:
    brightest = picture.max()
    return (picture + thickness * _plasma(fading, draw)[..., None]) * brightest / (brightest + thickness)


def _plasma(fading: float, draw: np.random.RandomState) -> np.ndarray:
    """Return float64 [256, 256] in 0..1: heights by the diamond-square algorithm."""
    heights = np.zeros((SIZE, SIZE))
    wibble: float = FOG_WIBBLE

    def mean_of(total: np.ndarray) -> np.ndarray:
        return total / 4 + wibble * draw.uniform(-wibble, wibble, total.shape)

    step = SIZE
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        total = corners + np.roll(corners, -1, axis=0)
        total = total + np.roll(total, -1, axis=1)
        heights[half::step, half::step] = mean_of(total)
        middles = heights[half::step, half::step]
        corners = heights[::step, ::step]
        total = (middles + np.roll(middles, 1, axis=0)) + (corners + np.roll(corners, -1, axis=1))
        heights[::step, half::step] = mean_of(total)
        total = (middles + np.roll(middles, 1, axis=1)) + (corners + np.roll(corners, -1, axis=0))
        heights[half::step, ::step] = mean_of(total)
        step = half
        wibble /= fading
    heights -= heights.min()
    return heights / heights.max()


def _behind_glass(
    picture: np.ndarray, sigma: float, farthest: int, repeats: int, draw: np.random.RandomState
) -> np.ndarray:
    """Blur, take each pixel from a near one, and blur again. Its package means to swap them, and copies instead."""
    blurred = (_blurred(picture / 255.0, sigma) * 255).astype(np.uint8)
    source = list(range(SIZE * SIZE))
    order = range(GLASS_SIZE - farthest, farthest, -1)
    for _ in range(repeats):
        steps = draw.randint(-farthest, farthest, size=(len(order) ** 2, 2))
        nearby = (steps[:, 1] * SIZE + steps[:, 0]).tolist()
        pixels = (SIZE * row + column for row in order for column in order)
        for pixel, near in zip(pixels, nearby, strict=True):
            source[pixel] = source[pixel + near]
    mixed = blurred.reshape(-1, 3)[source].reshape(picture.shape)
    return _blurred(mixed / 255.0, sigma)
