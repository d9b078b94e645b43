"""Action tokens: OpenVLA-OFT's formulas, written out, and the round trip."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.policies.action_bounds import ActionBins, Bounds
from tests.numerics import assert_norm_close, rounding
from tests.unit.policies.small import A, statistics

VOCABULARY = 32_000


def bins(kind: str = "q99") -> ActionBins:
    return ActionBins(Bounds(statistics()["action"], kind, A, "action"))


def published_decode(token: int, dim: int, low: str, high: str) -> float:
    """OpenVLA's ActionTokenizer and _unnormalize_actions, for vocabulary index 31744 + token."""
    edges = np.linspace(-1, 1, 256)
    centers = (edges[:-1] + edges[1:]) / 2
    index = np.clip(VOCABULARY - (VOCABULARY - 256 + token) - 1, 0, 254)
    stats = statistics()["action"]
    if not stats["mask"][dim]:
        return centers[index]
    return 0.5 * (centers[index] + 1) * (stats[high][dim] - stats[low][dim] + 1e-8) + stats[low][dim]


@pytest.mark.parametrize(("kind", "low", "high"), [("q99", "q01", "q99"), ("minmax", "min", "max")])
def test_decode_is_the_published_formula(kind: str, low: str, high: str) -> None:
    tokens = np.repeat(np.arange(256)[:, None], A, axis=1)
    decoded = bins(kind).decode(tokens)
    expected = [[published_decode(token, dim, low, high) for dim in range(A)] for token in range(256)]
    assert_norm_close(decoded, expected, rounding(1))
    assert decoded.dtype == np.float32


def test_encode_is_the_published_formula() -> None:
    edges, stats = np.linspace(-1, 1, 256), statistics()["action"]
    actions = np.random.default_rng(0).uniform(-6, 6, (500, A))
    for dim in range(A):
        scaled = actions[:, dim]
        if stats["mask"][dim]:
            scaled = 2 * (scaled - stats["q01"][dim]) / (stats["q99"][dim] - stats["q01"][dim] + 1e-8) - 1
        vocabulary_index = VOCABULARY - np.digitize(np.clip(scaled, -1, 1), edges)
        np.testing.assert_array_equal(bins().encode(actions)[:, dim], vocabulary_index - (VOCABULARY - 256))


def test_round_trip() -> None:
    """Tokens 1..255 come back; 0 shares its centre with 1. Actions come back within half a bin."""
    tokens = np.repeat(np.arange(256)[:, None], A, axis=1)
    np.testing.assert_array_equal(bins().encode(bins().decode(tokens)), np.maximum(tokens, 1))
    stats = statistics()["action"]
    low = np.where(stats["mask"], stats["q01"], -1.0)
    high = np.where(stats["mask"], stats["q99"], 1.0)
    actions = np.random.default_rng(1).uniform(low, high, (1000, A))
    assert (np.abs(bins().decode(bins().encode(actions)) - actions) <= (high - low) / 255 / 2 + 1e-5).all()


def test_larger_actions_have_smaller_tokens() -> None:
    first = bins().encode(np.array([[-9.0] * A, [0.0] * A, [9.0] * A]))
    assert (first[0] == 255).all()
    assert (first[2] == 0).all()
    assert (np.diff(first.astype(int), axis=0) < 0).all()


def test_normalize_clips_and_silences_motionless_dimensions() -> None:
    stats = {"q01": [0.0, 2.0, 5.0], "q99": [1.0, 2.0, 9.0]}
    bounds = Bounds(stats, "q99", 3, "proprio")
    assert_norm_close(bounds.normalize(np.array([0.25, 2.0000001, 100.0])), [-0.5, 0.0, 1.0], rounding(1))


def test_bad_statistics_are_named() -> None:
    stats = statistics()["action"]
    with pytest.raises(ValueError, match=r"action\.q99 is missing"):
        Bounds({"q01": [0.0]}, "q99", 1, "action")
    with pytest.raises(ValueError, match=r"action\.q01 has shape \(3,\), the policy has 4"):
        Bounds(stats, "q99", 4, "action")
    with pytest.raises(ValueError, match=r"action\.mask has 2 entries, expected 3"):
        Bounds(stats | {"mask": [True, False]}, "q99", 3, "action")
