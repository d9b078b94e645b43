"""Training successes of a run minus those of the fixed policy, paired by step, env and seed."""

from __future__ import annotations

import math

import pytest

from benchmarks.learning.paired import differences


def episodes(successes: dict[int, list[bool]]) -> list[dict]:
    return [
        {"step": step, "env": env, "seed": 100 * step + env, "success": success}
        for step, row in successes.items()
        for env, success in enumerate(row)
    ]


def test_the_first_step_is_left_out_and_ranges_are_of_twenty_steps() -> None:
    fixed = episodes({step: [True, False, False, False] for step in range(1, 24)})
    trained = episodes({step: [True, step % 2 == 0, step > 20, False] for step in range(1, 26)})  # two steps more
    whole, first, second = differences(trained, fixed)
    assert (whole.first, whole.last, first.last, second.first, second.last) == (2, 23, 20, 21, 23)
    assert first.points == pytest.approx(25 * 10 / 19) and second.points == pytest.approx(25 * 4 / 3)
    assert second.error == pytest.approx(25 * math.sqrt(1 / 3) / math.sqrt(3))
    assert second.text == "21-23: +33 ± 8"


def test_runs_with_other_starts_are_not_compared() -> None:
    fixed = episodes({1: [True], 2: [True]})
    other = [episode | {"seed": 7} for episode in fixed]
    with pytest.raises(ValueError, match="step 2 had other starts"):
        differences(other, fixed)
