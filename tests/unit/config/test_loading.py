"""Composition, types, freezing: what loads, what is refused, and that nothing changes afterwards."""

from __future__ import annotations

import copy
import pickle
import shutil
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from rlrun.config import composition
from rlrun.config.composition import SHIPPED, groups
from rlrun.config.loader import compose_only, load
from rlrun.config.provenance import as_tree
from rlrun.config.schema import ClusterKind, EnvConfig, Renderer, RunConfig
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.system.errors import ExitStatus, RunError, RunErrors

FILES = [f"{group}={name}" for group, names in groups([SHIPPED]).items() for name in names]


def refuse(*overrides: str) -> RunError:
    with pytest.raises(RunError) as caught:
        load(list(overrides))
    return caught.value


ELSEWHERE = ["placement.inventory=configs/inventory_example.yaml"]  # planned, for machines that have what it reads
NEEDS = {  # what else a file asks for, as a run that takes it does
    "env=gymnasium": ["policy.kind=mlp"],
    "env=libero": ["policy.kind=cnn"],
    "env=omnigibson": ELSEWHERE,
    "run=behavior_2026": ELSEWHERE,
    "run=behavior_ppo_openvla_oft": ELSEWHERE,
    "run=libero_gr00t": ELSEWHERE,
    "run=libero_pi05": ELSEWHERE,
    "run=libero_rlinf": ELSEWHERE,
    "run=libero_simplevla_rl": ELSEWHERE,
    "run=libero_smolvla": ELSEWHERE,
}


@pytest.mark.parametrize("file", FILES)
def test_every_shipped_file_loads(file: str) -> None:
    config = load([file, *NEEDS.get(file, [])])
    assert isinstance(config, RunConfig)
    assert isinstance(config.env, EnvConfig)


@pytest.mark.parametrize("values", [["++seed=3", "++env={num_envs: 4}", "++name='a=b'"], ["++cluster.kind=${name}x"]])
@pytest.mark.parametrize("choices", [[], ["run=libero_small"], ["run=debug", "+placement=dual_node"]])
def test_files_that_are_read_once_give_the_tree_that_hydra_composes(choices: list[str], values: list[str]) -> None:
    folders = composition.yaml_folders(None)
    whole = composition._compose(choices + values, folders, {})
    assert composition._untyped(choices + values, folders, None) == whole
    assert composition._untyped(choices, folders, None) != whole


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = Path(shutil.copytree(SHIPPED, tmp_path / "configs"))
    monkeypatch.setattr(composition, "yaml_folders", lambda _: [copied])
    own = copied / "run" / "own.yaml"
    (copied / "run" / ".#own.yaml").symlink_to("nowhere")  # as editors lock a file
    for num_envs in (3, 12):
        own.write_text(f"# @package _global_\nenv:\n  num_envs: {num_envs}\n")
        assert composition._untyped(["run=own"], [copied], None).env.num_envs == num_envs


def test_shipped_runs_are_all_there() -> None:
    assert {"turning_on_radio", "picking_up_trash", "debug", "single_process"} <= set(groups([SHIPPED])["run"])


def test_defaults_are_the_default_run() -> None:
    assert load([]) == load(["run=turning_on_radio"])


def test_overrides_win_over_files() -> None:
    assert load(["run=debug"]).num_steps == 2
    assert load(["num_steps=3", "run=debug"]).num_steps == 3


@pytest.mark.parametrize("argument", ["env.num_envs=many", "env.no_such_key=1", "seed=1.5"])
def test_a_mistake_is_refused_alike_under_a_debugger(monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    """OmegaConf then links the causes of its errors, in circles: following them once never ended."""
    told = []
    for link in ("0", "1"):  # 1: as where a debugger or coverage.py traces
        monkeypatch.setenv("OC_CAUSE", link)
        with pytest.raises(RunError) as raised:
            load([argument])
        told.append(str(raised.value))
    assert told[0] == told[1]


def test_values_have_real_types() -> None:
    config = load(["env.renderer=raycast", "run=single_process", "max_minutes=2"])
    assert config.env.renderer is Renderer.raycast
    assert config.cluster.kind is ClusterKind.local
    assert config.max_minutes == 2.0
    assert isinstance(config.max_minutes, float)


@pytest.mark.parametrize("override", ["+placement=pair", "placement=pair"])
def test_placement_is_chosen_with_and_without_plus(override: str, tmp_path: Path) -> None:
    (tmp_path / "placement").mkdir()
    (tmp_path / "placement" / "pair.yaml").write_text("roles: {actor: 0-1}\n")
    assert load([override], str(tmp_path)).placement.roles == {"actor": "0-1"}


def test_placement_can_be_written_as_arguments() -> None:
    assert load(["placement.roles.actor=0-7"]).placement.roles == {"actor": "0-7"}
    assert load(["placement={roles: {env: 0-3}}"]).placement.roles == {"env": "0-3"}


def test_unknown_key_of_an_argument() -> None:
    error = refuse("env.num_env=4")
    assert error.exit_status is ExitStatus.bad_config
    assert (error.key, error.value) == ("env.num_env", 4)
    assert "'env.num_env=4'" in error.cause
    assert "'env.num_envs'" in error.remedy


@pytest.mark.parametrize("override", ["num_envs=4", "+env.num_env=4", "++envs.num_envs=4"])
def test_nearest_key_is_suggested(override: str) -> None:
    assert "'env.num_envs'" in refuse(override).remedy


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("env.libero.suite=libero_10", "env.simulator=libero"),
        ("+policy.mlp.hidden_sizes=[8]", "policy.kind=mlp"),
        ("algorithm.grpo.group_size=4", "algorithm.name=grpo"),
    ],
)
def test_an_override_of_a_kind_that_is_not_chosen_is_refused(override: str, remedy: str) -> None:
    error = refuse(override)
    assert error.key == override.lstrip("+").partition("=")[0]
    assert remedy in error.remedy


def test_unknown_key_of_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.yaml").write_text("# @package _global_\nenv:\n  numenvs: 4\n")
    with pytest.raises(RunError) as caught:
        load(["run=mine"], str(tmp_path))
    assert caught.value.key == "env.numenvs"
    assert "run/mine.yaml" in caught.value.cause
    assert "'env.num_envs'" in caught.value.remedy


def test_file_without_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.yaml").write_text("num_steps: 4\n")
    with pytest.raises(RunError) as caught:
        load(["run=mine"], str(tmp_path))
    assert "run/mine.yaml" in caught.value.cause and "# @package _global_" in caught.value.remedy


def test_wrong_type_of_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.yaml").write_text("# @package _global_\nenv:\n  num_envs: many\n")
    with pytest.raises(RunError) as caught:
        load(["run=mine"], str(tmp_path))
    assert (caught.value.key, caught.value.value) == ("env.num_envs", "many")
    assert "run/mine.yaml" in caught.value.cause
    assert "expected int" in caught.value.cause


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("env.num_envs=four", "expected int"),
        ("env.num_envs=2.5", "expected int"),
        ("env.num_envs=null", "expected int"),
        ("env.embedded.cans_on_floor=7.5", "expected bool"),
        ("actor.betas=0.9", "expected list[float]"),
        ("policy.value_hidden_sizes=[a]", "expected list[int]"),
        ("cluster.kind=lcal", "expected ray | local"),
    ],
)
def test_wrong_type(override: str, expected: str) -> None:
    error = refuse(override)
    key, _, value = override.partition("=")
    assert (error.key, error.value) == (key, value)
    assert expected in error.cause
    assert error.remedy


def test_bad_enum_suggests_the_nearest() -> None:
    assert refuse("cluster.kind=lcal").remedy == "Did you mean local?"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run=debg", "run/debg.yaml"),
        ("env=4", "is a section"),
        ("policy=null", "is a section"),
        ("env.num_envs=1,2", "a sweep"),
        ("~env.num_envs", "a deletion"),
        ("nonsense", "cannot be read"),
    ],
)
def test_malformed_arguments(override: str, message: str) -> None:
    error = refuse(override)
    assert message in error.message
    assert error.remedy


def test_broken_yaml_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.yaml").write_text("# @package _global_\nenv: [1\n")
    with pytest.raises(RunError, match=r"mine\.yaml"):
        load(["run=mine"], str(tmp_path))


def test_missing_config_dir() -> None:
    with pytest.raises(RunError, match="not a folder"):
        load([], "nowhere")


def copies(config: RunConfig) -> list[RunConfig]:
    cloudpickle = pytest.importorskip("cloudpickle")
    return [
        config,
        pickle.loads(pickle.dumps(config)),
        cloudpickle.loads(cloudpickle.dumps(config)),
        copy.deepcopy(config),
        copy.copy(config),
    ]


def test_frozen_through_copies() -> None:
    config = load(["placement.roles.actor=0-7"])
    for frozen in copies(config):
        assert frozen == config
        with pytest.raises(FrozenInstanceError):
            frozen.seed = 3
        with pytest.raises(FrozenInstanceError):
            frozen.env.num_envs = 3
        with pytest.raises(FrozenInstanceError):
            del frozen.env.num_envs
        with pytest.raises(FrozenInstanceError):
            frozen.env.section(EmbeddedConfig).controlled.append("base")
        with pytest.raises(FrozenInstanceError):
            frozen.env.section(EmbeddedConfig).controlled[0] = "base"
        with pytest.raises(FrozenInstanceError):
            frozen.placement.roles["env"] = "0-3"


def test_replace_gives_a_changed_copy_and_leaves_the_original() -> None:
    config = load(["env.num_envs=16"])
    changed = replace(config, env=replace(config.env, num_envs=4))
    assert (changed.env.num_envs, config.env.num_envs) == (4, 16)


def test_errors_survive_pickling() -> None:
    error = RunError("m", key="k", value=[1], cause="c", remedy="r", exit_status=ExitStatus.stalled)
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert str(again) == "m\n  key:    k\n  value:  [1]\n  cause:  c\n  remedy: r"
    several = pickle.loads(pickle.dumps(RunErrors([error, error])))
    assert str(several) == f"{error}\n\n{error}"
    assert several.exit_status is ExitStatus.stalled


@pytest.mark.parametrize("run", ["turning_on_radio", "picking_up_trash", "debug"])
def test_a_group_is_chosen_again(run: str) -> None:
    """Whether the run's defaults name a world or not, and the run's own keys stay."""
    config = load([f"run={run}", "env=whole_body"])
    assert len(config.env.section(EmbeddedConfig).controlled) == 6
    assert config.env.num_envs == load([f"run={run}"]).env.num_envs


def test_a_recorded_world_holds_its_own_keys_only() -> None:
    shared = set(as_tree(load(["run=cartpole"]))["env"]) - {"gymnasium"}
    assert not shared & {"activity", "controlled", "cameras", "proprio", "reward_potential", "physics_hz"}
    for world, kind in (("libero", "libero"), ("omnigibson", "omnigibson"), ("whole_body", "embedded")):
        assert set(as_tree(compose_only([f"env={world}"]))["env"]) == shared | {kind}


def test_the_world_of_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shipped = (SHIPPED / "run" / "turning_on_radio.yaml").read_text()
    assert shipped.count("/env: embedded") == 1
    (tmp_path / "run" / "other.yaml").write_text(shipped.replace("/env: embedded", "/env: picking_up_trash"))
    world = load(["run=other"], str(tmp_path)).env.section(EmbeddedConfig)
    assert world.activity == "picking_up_trash"
