"""Coded frames come out as they went in, and smaller; what is damaged on the way is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlrun.cluster.frame_codec import coded, decode, encode, opened
from rlrun.data.messages import Frames, Observation


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def gradient(*shape: int) -> np.ndarray:
    """Every pixel differs from its neighbours, as on a wall in soft light."""
    rows, columns = np.arange(shape[2])[:, None, None], np.arange(shape[3])[:, None]
    return np.broadcast_to((3 * rows + 5 * columns + np.arange(3)).astype(np.uint8), shape)


@pytest.mark.parametrize("make", [noise, gradient])
@pytest.mark.parametrize("shape", [(4, 2, 16, 24, 3), (1, 1, 1, 1, 3), (3, 0, 8, 8, 3), (0, 1, 8, 8, 3)])
def test_bit_by_bit(make, shape) -> None:
    images = make(*shape)
    found = decode(encode(images))
    assert found.dtype == np.uint8 and found.shape == shape and np.array_equal(found, images)
    found += 1  # what arrives may be written to


def test_surfaces_shrink() -> None:
    images = gradient(8, 1, 64, 64, 3)
    assert encode(images).data.nbytes < 0.05 * images.nbytes


@pytest.mark.parametrize("has_final", [False, True])
def test_only_images_are_touched(has_final) -> None:
    frames = Frames(noise(2, 1, 8, 8, 3), np.ones((2, 3), np.float32), ("go", "stop"))
    final = replace(frames, images=gradient(2, 1, 8, 8, 3)) if has_final else None
    sent = Observation(3, frames, np.arange(2, dtype=np.uint64), 1.0, final)
    got = opened(coded(sent))
    assert np.array_equal(got.frames.images, frames.images) and got.frames.instructions == ("go", "stop")
    assert got.frames.proprio is frames.proprio and got.sampling_keys is sent.sampling_keys and got.env_worker == 3
    assert (got.final_frames is None) == (final is None)
    assert final is None or np.array_equal(got.final_frames.images, final.images)
    assert opened(sent) is sent


def test_damage_is_refused() -> None:
    found = encode(noise(2, 1, 8, 8, 3))
    with pytest.raises(ValueError, match="cannot be read"):
        decode(replace(found, data=found.data[:40]))
    with pytest.raises(ValueError, match=r"have 384 bytes, their shape \(2, 1, 8, 9, 3\) needs 432"):
        decode(replace(found, shape=(2, 1, 8, 9, 3)))
