"""Positions of patches: exact whatever the size, and the shifted ones of transformers 4 to the letter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.policies.flow.networks import patch_positions, vision_tower
from rlrun.policies.flow.spec import PatchPositions, VisionSizes

CPU = torch.device("cpu")


def of_transformers_4(per_side: int) -> np.ndarray:
    """The arithmetic of SmolVLMVisionEmbeddings 4.57.1 in float32, written out for a picture without padding."""
    boundaries = torch.arange(1 / per_side, 1.0, 1 / per_side)
    along = torch.arange(per_side, dtype=torch.float32) / torch.tensor(per_side) * (1 - 1e-6)
    buckets = torch.bucketize(along, boundaries, right=True)
    return (buckets[:, None] * per_side + buckets).flatten().numpy()


@pytest.mark.parametrize("per_side", [*range(1, 65), 224])
def test_shifted_positions_are_those_of_transformers_4(per_side: int) -> None:
    found = patch_positions(per_side, PatchPositions.shifted, CPU)
    np.testing.assert_array_equal(found.numpy(), of_transformers_4(per_side))


def test_exact_positions_are_those_of_the_patches() -> None:
    for per_side in range(1, 65):
        found = patch_positions(per_side, PatchPositions.exact, CPU)
        np.testing.assert_array_equal(found.numpy(), np.arange(per_side**2))


@pytest.mark.parametrize("positions", PatchPositions)
@pytest.mark.parametrize("per_side", [4, 19, 25])
def test_the_tower_reads_them(per_side: int, positions: PatchPositions) -> None:
    """Each patch of an empty picture is its position's embedding, if the layers after it leave it as it is."""
    sizes = VisionSizes(8, 16, 1, 2, image_size=2 * per_side, patch_size=2)
    tower = vision_tower(sizes, positions).eval()
    tower.encoder.layers = torch.nn.ModuleList()
    with torch.no_grad():
        tower.embeddings.patch_embedding.bias.zero_()
        found = tower(torch.zeros(1, 3, 2 * per_side, 2 * per_side))[0]
        expected = tower.post_layernorm(tower.embeddings.position_embedding.weight)
    np.testing.assert_array_equal(found.numpy(), expected[patch_positions(per_side, positions, CPU)].numpy())
