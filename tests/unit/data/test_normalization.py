"""Statistics of demonstrations: a dimension that moves rarely keeps its motion, in bins and for flow policies."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.data.lerobot.statistics import NORMALIZED_LIMIT, rare_motions, vector_stats, widen
from rlrun.policies.action_bounds import ActionBins, Bounds
from rlrun.policies.flow.lerobot_config import Quantiles, Standardization, of_demonstrations

FRAMES = 400


def motions() -> dict[str, np.ndarray]:
    """Columns of actions [F]: one usual motion, and those that rarely or hardly move."""
    draw = np.random.default_rng(3)
    rest = np.zeros(FRAMES)
    rest[57] = 0.8
    both = np.zeros(FRAMES)
    both[[10, 300]] = 1.0, -0.2
    noisy = draw.normal(0.0, 1e-3, FRAMES)
    noisy[200] = 0.5
    return {
        "usual": draw.uniform(-1, 1, FRAMES),
        "one_frame": rest,
        "both_ways": both,
        "noisy_rest": noisy,
        "drift": 1.569 + 5e-7 * np.arange(FRAMES),
        "rounding": 1.569 + 1e-7 * (np.arange(FRAMES) % 3),
        "constant": np.full(FRAMES, -2.5),
        "large": 1e4 + 1e-4 * (np.arange(FRAMES) % 2),
    }


NAMES = tuple(motions())
ACTIONS = np.stack(list(motions().values()), axis=1).astype(np.float32)  # [F, A]


def norm_stats(actions: np.ndarray = ACTIONS) -> dict[str, dict]:
    found = widen(vector_stats(actions), is_action=True).statistics
    return {"action": found | {"mask": [True] * actions.shape[1]}, "proprio": found}


@pytest.mark.parametrize("kind", [Quantiles, Standardization])
def test_demonstrated_actions_stay_small_and_come_back(kind: type) -> None:
    action = of_demonstrations(norm_stats(), kind).action
    assert action is not None
    normalized = action.normalize(ACTIONS)
    assert np.abs(normalized).max() <= NORMALIZED_LIMIT + 1e-3
    back = action.denormalize(normalized)
    assert np.linalg.norm(back - ACTIONS) < 1e-6 * np.linalg.norm(ACTIONS)


def test_rare_motion_survives_action_bins() -> None:
    bins = ActionBins(Bounds(norm_stats()["action"], "q99", ACTIONS.shape[1], "action"))
    back = bins.decode(bins.encode(ACTIONS))
    for name, frame in (("one_frame", 57), ("one_frame", 0), ("both_ways", 10), ("both_ways", 300)):
        column = NAMES.index(name)
        assert back[frame, column] == pytest.approx(ACTIONS[frame, column], abs=3e-3 if name == "both_ways" else 1e-6)
    assert back[200, NAMES.index("noisy_rest")] == pytest.approx(0.5, abs=1e-6)


def test_usual_motion_keeps_its_statistics() -> None:
    given = vector_stats(ACTIONS[:, :1])
    kept = widen(given, is_action=True)
    assert kept.rare == ()
    assert all(kept.statistics[name] == given[name] for name in given if name != "count")


def test_a_state_that_never_moves_is_left_to_the_policy() -> None:
    """OpenVLA-OFT silences it, as long as its quantiles are equal."""
    given = vector_stats(ACTIONS)
    kept, column = widen(given, is_action=False).statistics, NAMES.index("constant")
    assert kept["q01"][column] == kept["q99"][column] == -2.5


def test_each_rare_dimension_is_told_once_with_its_name() -> None:
    told = rare_motions(vector_stats(ACTIONS), "action", NAMES)
    assert [sentence.split(" goes")[0] for sentence in told] == [
        "action[1] (one_frame)",
        "action[2] (both_ways)",
        "action[3] (noisy_rest)",
    ]
    assert "goes from 0 to 0.8, its 1st and 99th percentile are 0 and 0" in told[0]
    assert "normalized by its range" in told[0]
    assert rare_motions(vector_stats(ACTIONS[:, :1]), "action") == []
