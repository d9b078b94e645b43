"""Which perturbed worlds a certification takes, and how many episodes."""

from __future__ import annotations

import pytest

from rlrun.certification.certifying import perturbed_worlds, without_repetitions
from rlrun.config.loader import load
from rlrun.system.errors import RunError


def chosen(names: str) -> list[str]:
    return list(perturbed_worlds(load(["env=libero", "policy.kind=cnn", f"certify.perturb=[{names}]"])))


def test_all_are_those_that_repeat_nothing() -> None:
    names = chosen("all")
    assert {"lan", "plus_camera", "plus_layout", "delay_1", "delay_2"} < set(names) and len(names) == 12
    assert chosen("all, plus_camera_3") == [*names, "plus_camera_3"]
    assert chosen("plus_noise_held_out, lan") == ["plus_noise_held_out", "lan"]


def test_an_unknown_one_is_told_those_that_there_are() -> None:
    with pytest.raises(RunError, match="no perturbation 'plus_light'") as caught:
        chosen("lan, plus_light")
    assert "plus_camera" in str(caught.value.remedy) and "plus_camera_3" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["evaluation.temperature=0"], 40),
        (["evaluation.temperature=0", "certify.num_episodes=30"], 30),
        (["evaluation.temperature=0", "env.libero.test_starts=sampled"], 200),
        (["evaluation.temperature=0", "env.libero.plus=[camera]"], 200),
        (["evaluation.temperature=1"], 200),
    ],
)
def test_a_start_is_repeated_only_where_actions_are_drawn(words: list[str], number: int) -> None:
    """Of one task: starts 10 to 49 are the test's."""
    config = load(["env=libero", "policy.kind=cnn", "env.libero.task_ids=[7]", *words])
    assert without_repetitions(config).certify.num_episodes == number
