"""The rule that ends a certification keeps the coverage of its interval, although it looks at the outcomes."""

import numpy as np
import pytest

from rlrun.certification.card import BATCH, next_batch, stops
from rlrun.observability.records import wilson_interval

NUM_CERTIFICATIONS = 200


def certified(outcomes: np.ndarray, half_width: float | None, most: int) -> int:
    """Return how many of the outcomes, bool [N], the rule takes, as a certification asks it."""
    taken = 0
    while not stops(outcomes[:taken].tolist(), half_width, most):
        taken += next_batch(taken, half_width, most)
    return taken


@pytest.mark.parametrize("half_width", [None, 0.05, 0.03])
def test_intervals_of_many_certifications_contain_the_truth_as_often_as_they_say(half_width):
    """2,000 certifications of policies of 5 to 95 %: the standard error of their coverage is half a point."""
    random = np.random.default_rng(7)
    hits = []
    for rate in (0.05, 0.2, 0.4, 0.5, 0.6, 0.75, 0.8, 0.9, 0.93, 0.95):
        for _ in range(NUM_CERTIFICATIONS):
            outcomes = random.random(1200) < rate
            count = certified(outcomes, half_width, 200 if half_width is None else 1200)
            low, high = wilson_interval(int(outcomes[:count].sum()), count)
            hits.append(low <= rate <= high)
    assert 0.93 <= np.mean(hits) <= 0.97


def test_ending_when_it_looks_good_would_not_keep_it():
    """The test above can fail: who ends as soon as the interval lies above a half covers less."""
    random = np.random.default_rng(7)
    hits = []
    for _ in range(300):
        successes = np.cumsum(random.random(300) < 0.5)
        lows = [wilson_interval(int(successes[count - 1]), count)[0] for count in range(10, 301)]
        count = 10 + int(np.argmax(np.array(lows) > 0.5)) if max(lows) > 0.5 else 300
        low, high = wilson_interval(int(successes[count - 1]), count)
        hits.append(low <= 0.5 <= high)
    assert np.mean(hits) < 0.9


def test_a_fixed_rule_ends_at_its_number():
    assert certified(np.ones(500, bool), None, 120) == 120


def test_a_sequential_rule_ends_only_after_whole_batches_or_at_its_limit():
    assert certified(np.ones(500, bool), 0.05, 400) == BATCH  # Wilson's interval of 50 of 50 is 0.929 to 1
    assert certified(np.arange(500) % 2 == 0, 0.05, 130) == 130
