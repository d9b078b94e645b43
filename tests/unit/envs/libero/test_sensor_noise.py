"""LIBERO-Plus's fifty kinds of noise beside what its own package made of the same picture.

    PLUS_PYTHON scripts/oracles/libero_plus.py noise tests/golden/libero_plus_noise.npz

recorded every sixteenth row and column, with ImageMagick 6.9.11, scikit-image 0.26 and NumPy 1.26.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.envs.libero.sensor_noise import KINDS, SEVERITIES, SIZE, noisy

RECORDED = np.load(Path(__file__).resolve().parents[3] / "golden" / "libero_plus_noise.npz")
NUMBERS = range(1, KINDS * SEVERITIES + 1)


@pytest.mark.parametrize("first", range(1, len(NUMBERS), SEVERITIES))
def test_noise_is_that_of_the_package(first: int) -> None:
    """Equal to the bit with NumPy 1.26; later ones compute exponentials otherwise, which turns single grey levels."""
    picture = RECORDED["picture"]
    for number in range(first, first + SEVERITIES):
        ours = noisy(picture, number, np.random.RandomState(number))[::16, ::16].astype(int)
        apart = np.abs(ours - RECORDED["noisy"][number - 1])
        assert apart.max() <= 2 and apart.mean() < 0.5
        assert np.abs(ours - picture[::16, ::16].astype(int)).mean() > 1


def test_noise_is_drawn_anew_and_can_be_repeated() -> None:
    draw = np.random.RandomState(0)
    first, second = (noisy(RECORDED["picture"], 35, draw) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, noisy(RECORDED["picture"], 35, np.random.RandomState(0)))


@pytest.mark.parametrize(("size", "number"), [(SIZE, 0), (SIZE, 51), (224, 5)])
def test_other_numbers_and_sizes_are_refused(size: int, number: int) -> None:
    with pytest.raises(ValueError, match=f"noise {number}"):
        noisy(np.zeros((size, size, 3), np.uint8), number, np.random.RandomState(0))
