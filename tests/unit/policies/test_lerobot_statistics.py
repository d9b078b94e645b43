"""Statistics of new policies: what hardly varied in demonstrations is not blown up."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.policies.flow.lerobot_config import MIN_STATE_STD, Normalizer, Quantiles, Standardization, of_demonstrations

FOUND = {"mean": [0.2, 1.0], "std": [0.5, 0.0], "q01": [-0.8, 1.0], "q99": [1.2, 1.0]}
NORM_STATS = {"proprio": FOUND, "action": FOUND}


@pytest.mark.parametrize("kind", [Standardization, Quantiles])
def test_a_number_of_the_state_that_never_varied_stays_small(kind: type[Normalizer]) -> None:
    statistics = of_demonstrations(NORM_STATS, kind)
    assert statistics.state is not None
    moved = np.array([[0.2, 1.0 + MIN_STATE_STD]], np.float32)
    found = statistics.state.normalize(moved)[0]
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert 0.2 < found[1] < 1.5
    assert np.linalg.norm(statistics.state.denormalize(found[None]) - moved) < 1e-5


@pytest.mark.parametrize("kind", [Standardization, Quantiles])
def test_actions_are_scaled_as_they_were_demonstrated(kind: type[Normalizer]) -> None:
    action = of_demonstrations(NORM_STATS, kind).action
    assert action is not None
    assert action.denormalize(np.array([[0.7, 0.7]], np.float32))[0, 1] == pytest.approx(1.0)
