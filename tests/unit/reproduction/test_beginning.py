"""The unchanged run of each published evaluation is a configuration that rlrun takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.provenance import POLICY_CONFIG, write_config
from rlrun.envs.libero.spec import SuiteConfig
from rlrun.policies.flow.spec import FirstNoise, Sampling
from rlrun.policies.smolvla.spec import SmolVLASettings
from rlrun.reproduce import parser
from rlrun.reproduction.beginning import beginning
from rlrun.reproduction.conventions import Subject
from rlrun.reproduction.course import published_number
from rlrun.reproduction.families import FAMILIES, OWN, Family
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


def recorded_folder(place: Path) -> Path:
    """Return a policy folder with the record of the run that trained it, whose world settles for three steps."""
    place.mkdir()
    (place / "config.json").write_text('{"type": "smolvla", "num_action_chunks": 8}')
    keys = ["run=libero_small", "env.libero.settle_steps=3", "env.max_control_steps=48", "policy.use_proprio=true"]
    write_config(load(keys), place / POLICY_CONFIG)
    return place


def unchanged(folder: Path, tmp_path: Path, *words: str) -> Subject:
    options = parser().parse_intermixed_args([str(folder), "--suite", "libero_goal", "--tasks", "7", *words])
    begin = beginning(options)
    return begin.subject(Trials(begin.overrides, begin.recorded, begin.policy, tmp_path / "trials"))


def test_a_recorded_run_is_evaluated_in_its_own_world(tmp_path: Path) -> None:
    subject = unchanged(recorded_folder(tmp_path / "policy"), tmp_path)
    assert subject.family is OWN
    assert subject.config.env.section(SuiteConfig).settle_steps == 3 and subject.config.env.max_control_steps == 48
    assert subject.config.policy.num_action_chunks == 8


def test_a_family_that_is_named_is_obeyed_before_the_record_and_the_command_line_before_it(tmp_path: Path) -> None:
    folder = recorded_folder(tmp_path / "policy")
    subject = unchanged(folder, tmp_path, "--family", "LeRobot SmolVLA")
    assert subject.family.name == "LeRobot SmolVLA"
    assert subject.config.env.section(SuiteConfig).settle_steps == 10 and subject.config.env.max_control_steps == 300
    given = unchanged(folder, tmp_path, "--family", "LeRobot SmolVLA", "env.libero.settle_steps=7")
    assert given.config.env.section(SuiteConfig).settle_steps == 7


def test_an_official_folder_of_lerobot_is_evaluated_as_lerobot_does(tmp_path: Path) -> None:
    picture = {"type": "VISUAL", "shape": [3, 256, 256]}
    folder = tmp_path / "policy"
    folder.mkdir()
    described = {"type": "smolvla", "n_action_steps": 50, "num_steps": 10, "input_features": {"one": picture}}
    (folder / "config.json").write_text(json.dumps(described))
    config = unchanged(folder, tmp_path).config
    own = config.policy.section(SmolVLASettings)
    assert (own.sampling, own.first_noise, config.evaluation.temperature) == (Sampling.nft, FirstNoise.drawn, 1.0)
    assert (own.num_flow_steps, config.policy.num_action_chunks, config.env.image_size) == (10, 50, 256)
    assert config.env.section(SuiteConfig).has_openness is False and config.env.max_control_steps == 300


@pytest.mark.parametrize(
    ("words", "published"),
    [
        ((), 0.98),
        (("--tasks", "7"), None),
        (("--tasks", "7", "--published", "0.5"), 0.5),
        (("--published", "none"), None),
    ],
)
def test_the_number_of_a_family_is_that_of_a_whole_suite(words: tuple[str, ...], published: float | None) -> None:
    server = ["ws://127.0.0.1:8000", "--suite", "libero_goal", "--family", "openpi pi0.5"]
    options = parser().parse_intermixed_args([*server, *words])
    assert published_number(options, beginning(options)) == published
