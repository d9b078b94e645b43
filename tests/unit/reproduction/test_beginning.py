"""The unchanged run of each published evaluation is a configuration that rlrun takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.reproduce import parser
from rlrun.reproduction.beginning import beginning
from rlrun.reproduction.families import FAMILIES, Family
from rlrun.reproduction.trials import Trials
from rlrun.system.errors import RunError


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_served_policy_is_evaluated_as_its_family_does(family: Family, tmp_path: Path) -> None:
    words = ["ws://127.0.0.1:8000", "--suite", "libero_goal", "--family", family.name]
    begin = beginning(parser().parse_intermixed_args(words))
    config = begin.subject(Trials(begin.overrides, None, None, tmp_path)).config
    assert config.env.simulator == "libero" and config.evaluation.server == "ws://127.0.0.1:8000"
    assert config.env.max_control_steps == family.limits["libero_goal"]


def test_a_served_policy_has_no_folder_to_compare() -> None:
    words = ["ws://127.0.0.1:8000", "--compared-with", "elsewhere"]
    with pytest.raises(RunError, match="no folder that could be compared"):
        beginning(parser().parse_intermixed_args(words))
