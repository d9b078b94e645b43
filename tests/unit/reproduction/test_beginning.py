"""The unchanged run of each published evaluation is a configuration that rlrun takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlrun.config.checks import OF_INPUTS, OF_TRAINING
from rlrun.config.loader import load
from rlrun.config.provenance import POLICY_CONFIG, write_config
from rlrun.envs.libero.spec import StateForm, SuiteConfig
from rlrun.policies.flow.spec import FirstNoise, Sampling
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.pi.spec import PiSettings, StateInPrompt
from rlrun.policies.smolvla.spec import SmolVLASettings
from rlrun.reproduce import parser
from rlrun.reproduction.beginning import beginning
from rlrun.reproduction.conventions import Subject, all_changes
from rlrun.reproduction.course import distinct_starts, published_number, reproduce
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


def official(place: Path, described: dict, *names: str) -> Path:
    """Return a folder as its authors publish it: config.json, and weights of which only the names are read here."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(described))
    save_file({name: torch.zeros(1) for name in names}, place / "model.safetensors")
    return place


def openvla(place: Path, *more: str) -> Path:
    """Return a folder of OpenVLA-OFT, whose fine-tuning has written its statistics beside config.json."""
    entries = {"austin_buds": {}, "bridge_orig": {}}
    folder = official(place, {"model_type": "openvla", "norm_stats": entries}, "vision_backbone.weight", *more)
    (folder / "dataset_statistics.json").write_text(json.dumps({"libero_goal_no_noops": {}}))
    return folder


@pytest.mark.parametrize("has_projector", [False, True])
@pytest.mark.parametrize("family", ["SimpleVLA-RL", "RLinf"])
def test_an_official_folder_of_openvla_is_evaluated_as_its_recipe_does(
    has_projector: bool, family: str, tmp_path: Path
) -> None:
    folder = openvla(tmp_path / "policy", *(["proprio_projector.fc1.weight"] if has_projector else []))
    subject = unchanged(folder, tmp_path, "--family", family)
    own = subject.config.policy.section(OpenVLAOFTSettings)
    recipe = load([f"run=libero_{'rlinf' if family == 'RLinf' else 'simplevla_rl'}"], skipped=OF_INPUTS)
    theirs = recipe.policy.section(OpenVLAOFTSettings)
    assert (own.has_stop_token, own.center_crop) == (theirs.has_stop_token, theirs.center_crop)
    assert not own.has_action_queries and subject.config.policy.use_proprio == has_projector
    world = subject.config.env.section(SuiteConfig)
    recipes_world = recipe.env.section(SuiteConfig)
    for name in ("idle_gripper", "settle_steps", "has_openness", "cameras"):
        assert getattr(world, name) == getattr(recipes_world, name), name
    assert own.unnorm_key == "libero_goal_no_noops"
    offered = {change.value for change in all_changes(subject) if change.convention == "statistics: entry"}
    assert offered == {"austin_buds", "bridge_orig"}


@pytest.mark.parametrize(
    ("names", "family", "state", "in_prompt"),
    [
        ((), "openpi pi0", StateForm.axis_angle, None),
        (("time_mlp_in.weight",), "openpi pi0.5", StateForm.axis_angle, StateInPrompt.none),
    ],
)
def test_the_tensors_of_openpi_say_which_of_its_policies_a_folder_holds(
    names: tuple[str, ...], family: str, state: StateForm, in_prompt: StateInPrompt | None, tmp_path: Path
) -> None:
    described = {"action_horizon": 10, "action_dim": 32, "paligemma_variant": "gemma_2b"}
    subject = unchanged(official(tmp_path / "policy", described, "action_in_proj.weight", *names), tmp_path)
    assert subject.family.name == family
    assert subject.config.env.section(SuiteConfig).state is state
    assert subject.config.policy.section(PiSettings).state_in_prompt is in_prompt


@pytest.mark.parametrize(("tag", "steps"), [("libero_sim", 8), ("new_embodiment", 40)])
def test_gr00t_executes_as_many_steps_of_a_chunk_as_lerobot(tag: str, steps: int, tmp_path: Path) -> None:
    described = {"type": "groot", "model_version": "n1.7", "embodiment_tag": tag, "n_action_steps": 40}
    subject = unchanged(official(tmp_path / "policy", described, "one"), tmp_path)
    assert subject.config.policy.num_action_chunks == steps


def test_a_server_of_vla_eval_is_asked_for_one_action(tmp_path: Path) -> None:
    begin = beginning(parser().parse_intermixed_args(["ws://127.0.0.1:8000/vla-eval", "--suite", "libero_goal"]))
    subject = begin.subject(Trials(begin.overrides, begin.recorded, begin.policy, tmp_path))
    assert subject.config.policy.num_action_chunks == 1


@pytest.mark.parametrize("family", ["LeRobot GR00T N1.7", "Isaac-GR00T N1.7"])
def test_the_gripper_of_gr00t_is_turned_once(family: str, tmp_path: Path) -> None:
    """Its policy makes -1 and 1 of the gripper's number, and the world takes them as they are."""
    described = {"type": "groot", "model_version": "n1.7", "embodiment_tag": "libero_sim"}
    subject = unchanged(official(tmp_path / "policy", described, "one"), tmp_path, "--family", family)
    assert subject.family.name == family
    assert subject.config.env.section(SuiteConfig).has_openness is False


def test_a_suite_that_is_asked_for_is_whole_though_the_record_names_tasks(tmp_path: Path) -> None:
    folder = recorded_folder(tmp_path / "policy")
    for words, suite, tasks in (
        (["--suite", "libero_10"], "libero_10", []),
        ([], "libero_goal", [7]),
        (["--tasks", "1"], "libero_goal", [1]),
    ):
        begin = beginning(parser().parse_intermixed_args([str(folder), *words]))
        subject = begin.subject(Trials(begin.overrides, begin.recorded, begin.policy, tmp_path))
        own = subject.config.env.section(SuiteConfig)
        assert (own.suite, list(own.task_ids)) == (suite, tasks)


@pytest.mark.parametrize(("suite", "limit"), [("libero_10", 520), ("libero_10_swap", 520), ("libero_goal", 300)])
@pytest.mark.parametrize("server", ["ws://127.0.0.1:8000", "ws://127.0.0.1:8000/vla-eval"])
def test_a_server_without_a_family_has_the_published_limit_and_starts(
    suite: str, limit: int, server: str, tmp_path: Path
) -> None:
    begin = beginning(parser().parse_intermixed_args([server, "--suite", suite]))
    config = begin.subject(Trials(begin.overrides, None, None, tmp_path)).config
    assert config.env.max_control_steps == limit
    assert config.env.section(SuiteConfig).validation_starts == "0:50"
    assert begin.family.name == ("vla-eval" if server.endswith("vla-eval") else "rlrun")


def test_a_folder_whose_name_begins_as_an_address_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_folder(tmp_path / "ws_policy")
    monkeypatch.chdir(tmp_path)
    assert beginning(parser().parse_intermixed_args(["ws_policy"])).policy == tmp_path / "ws_policy"


@pytest.mark.parametrize("word", ["0", "-5", "many"])
def test_a_number_of_episodes_is_positive(word: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_intermixed_args(["policy", f"--episodes={word}"])
    assert ended.value.code == 2


@pytest.mark.parametrize(("other", "words"), [("nowhere", "There is no policy at"), ("policy", "hold the same files")])
def test_a_folder_to_compare_with_differs_and_is_there(other: str, words: str, tmp_path: Path) -> None:
    folder = recorded_folder(tmp_path / "policy")
    options = parser().parse_intermixed_args([str(folder), "--compared-with", str(tmp_path / other)])
    with pytest.raises(RunError, match=words):
        reproduce(options)


def test_a_policy_of_another_world_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded_folder(tmp_path / "policy")
    write_config(load(["policy=smolvla"]), folder / POLICY_CONFIG)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="trained in another world") as refused:
        reproduce(parser().parse_intermixed_args([str(folder)]))
    assert "rlrun eval" in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("run=libero_small", "policy.kind=cnn", "evaluation.temperature=0"), 10),
        (("run=libero_small", "policy.kind=cnn", "evaluation.temperature=1"), None),
        (("run=libero_small", "evaluation.temperature=0"), 10),  # a flow begins with the same noise
        (("run=libero_small", "evaluation.temperature=1"), None),
        (("run=libero_small", "policy.kind=cnn", "evaluation.temperature=0", "env.libero.plus=[camera]"), None),
    ],
)
def test_repeated_starts_are_new_episodes_only_where_actions_are_drawn(
    words: tuple[str, ...], number: int | None
) -> None:
    config = load([*words, "env.libero.task_ids=[7]", "env.libero.validation_starts='40:50'"], skipped=OF_TRAINING)
    assert distinct_starts(Subject(config, {}, OWN)) == number


@pytest.mark.parametrize(
    ("words", "published"),
    [
        ((), 0.98),
        (("--tasks", "7"), None),
        (("--tasks", "7", "--published", "0.5"), 0.5),
        (("--published", "none"), None),
        (("env.libero.task_ids=[7]",), None),
        (("env.libero.plus=[camera]",), None),
        (("env.libero.suite=libero_10",), 0.924),
    ],
)
def test_the_number_of_a_family_is_that_of_the_whole_suite_that_runs(
    words: tuple[str, ...], published: float | None, tmp_path: Path
) -> None:
    server = ["ws://127.0.0.1:8000", "--suite", "libero_goal", "--family", "openpi pi0.5"]
    options = parser().parse_intermixed_args([*server, *words])
    begin = beginning(options)
    config = begin.subject(Trials(begin.overrides, None, None, tmp_path)).config
    assert published_number(options, begin, config) == published
