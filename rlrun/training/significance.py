"""Probabilities with which numbers of episodes are compared: between parts of them, and with what went before."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

SURE = 5.5  # standard deviations; 4e-8 by chance
ALIKE = 3.5  # standard deviations; peers that differ more from one another are not compared


def all_deviations(parts: Sequence[np.ndarray]) -> list[float]:
    """Return the deviation of each part's numbers from all others, in standard deviations (Mann-Whitney)."""
    whole = np.concatenate(parts)
    total = whole.size
    _, index, counts = np.unique(whole, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]  # equal numbers share the mean of their ranks
    ties = 1 - float((counts.astype(float) ** 3 - counts).sum()) / max(1, total**3 - total)
    deviations = []
    for part_ranks in np.split(ranks, np.cumsum([part.size for part in parts])[:-1]):
        num_own = part_ranks.size
        num_others = total - part_ranks.size
        if not num_own or not num_others:
            deviations.append(0.0)
            continue
        more = (part_ranks.sum() - num_own * (num_own + 1) / 2) / (num_own * num_others)  # probability of a larger one
        deviation = math.sqrt(max(1e-12, ties) * (total + 1) / (12 * num_own * num_others))
        deviations.append((float(more) - 0.5) / deviation)
    return deviations


def chance_of_none(num_with: float, num_without: float, count: float) -> float:
    """Return the probability that none of `count` further episodes has what so many had, and so many had not."""
    total = num_with + num_without
    more = math.lgamma(num_without + 1 + count) - math.lgamma(total + 2 + count)
    return math.exp(more + math.lgamma(total + 2) - math.lgamma(num_without + 1))
