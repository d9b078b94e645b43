"""The configuration that a run left: found beside its checkpoints and in exported policies, and overridden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rlrun.config import provenance
from rlrun.config.loader import entry_point, load
from rlrun.config.provenance import POLICY_CONFIG, own_version, signed
from rlrun.config.recorded import config_of_policy, quoted, resumption
from rlrun.config.schema import RunConfig
from rlrun.config.sections import to_dict
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.observability.records import read_run
from rlrun.system.errors import ExitStatus, RunError, RunErrors


def run_folder(place: Path, *overrides: str) -> Path:
    """A run folder with a configuration, and one checkpoint with a policy."""
    folder = place / "a run's"
    checkpoint = folder / "checkpoints" / "step_00000010"
    (checkpoint / "policy").mkdir(parents=True)
    (checkpoint / "policy" / "config.json").write_text("{}")
    provenance.write(load([*overrides, f"output_dir={quoted(str(folder))}"]), folder)
    return folder


def loaded(main, *arguments: str) -> RunConfig:
    """What a program of `main`'s options gets."""
    got: list[RunConfig] = []

    @entry_point("Keeps its configuration.", **main)
    def program(config: RunConfig) -> None:
        got.append(config)

    with pytest.raises(SystemExit) as ended:
        program(list(arguments))
    assert ended.value.code == 0
    return got[0]


TRAIN = {"resumes": True}
EVAL = {"uses_policy": True, "aliases": {"checkpoint": "evaluation.checkpoint"}}


def test_a_run_resumes_with_its_configuration_and_overrides_on_top(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "seed=7", "num_steps=3")
    config = loaded(TRAIN, f"resume={folder}", "num_steps=9")
    assert (config.seed, config.num_steps, config.env.simulator) == (7, 9, "gymnasium")
    assert (config.output_dir, config.checkpoint.resume) == (str(folder), "auto")


def test_a_resumed_configuration_is_the_run_s(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run=debug", "+placement=single_node", "env.num_workers=2")
    recorded = resumption(str(folder))
    assert load(recorded.overrides(None), recorded=recorded.recorded) == load(
        ["run=debug", "+placement=single_node", "env.num_workers=2", *recorded.overrides(None)]
    )


def test_a_resumed_run_branches_off_into_another_folder(tmp_path: Path) -> None:
    folder, branch = run_folder(tmp_path, "run=cartpole"), tmp_path / "branch"
    config = loaded(TRAIN, f"resume={folder}", f"output_dir={branch}")
    assert (config.output_dir, config.checkpoint.resume) == (str(branch), str(folder / "checkpoints"))
    one = folder / "checkpoints" / "step_00000010"
    assert loaded(TRAIN, f"resume={one}", f"output_dir={branch}").checkpoint.resume == str(one)
    assert loaded(TRAIN, f"resume={one}").output_dir == str(folder)
    (branch / "checkpoints" / "step_00000020").mkdir(parents=True)  # the same command again goes on from there
    assert loaded(TRAIN, f"resume={one}", f"output_dir={branch}").checkpoint.resume == "auto"


@pytest.mark.parametrize("place", [".", "checkpoints/step_00000010", "checkpoints/step_00000010/policy"])
def test_a_policy_brings_the_configuration_of_its_run(tmp_path: Path, place: str) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "seed=7", "record.num_steps=2")
    config = loaded(EVAL, f"checkpoint={folder / place}", "evaluation.num_episodes=2")
    assert (config.env.simulator, config.seed, config.evaluation.num_episodes) == ("gymnasium", 7, 2)
    assert (config.output_dir, config.record.num_steps) == (None, 0), "an evaluation is not written into the run"


def test_an_exported_policy_brings_it_too(tmp_path: Path) -> None:
    exported = tmp_path / "policy"
    exported.mkdir()
    (exported / "config.json").write_text("{}")
    assert config_of_policy(exported) is None, "an official checkpoint has none"
    provenance.write_config(load(["run=cartpole"]), exported / POLICY_CONFIG)
    assert loaded(EVAL, f"checkpoint={exported}").env.simulator == "gymnasium"


def test_an_evaluation_is_not_checked_as_a_training(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run=turning_on_radio")
    with pytest.raises((RunError, RunErrors)):
        load(["run=turning_on_radio", "env.num_envs=6", "actor.num_workers=4"])
    config = loaded(EVAL, f"checkpoint={folder}", "env.num_envs=6", "actor.num_workers=4")
    assert config.env.num_envs == 6


def test_an_empty_mapping_returns_a_section_to_its_defaults(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "+placement=single_node", "actor.num_workers=2")
    assert loaded(EVAL, f"checkpoint={folder}").placement.roles
    config = loaded(EVAL, f"checkpoint={folder}", "placement={}")
    assert (config.placement.roles, config.placement.nodes) == ({}, {})


def test_what_cannot_be_resumed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @entry_point("Does nothing.", resumes=True)
    def program(config: RunConfig) -> None: ...

    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            program(list(arguments))
        assert ended.value.code in (ExitStatus.bad_input, ExitStatus.bad_config)
        return capsys.readouterr().err

    assert "There is no run to resume" in refused(f"resume={tmp_path}")
    folder = run_folder(tmp_path, "run=cartpole")
    assert "Leave out run=" in refused(f"resume={folder}", "run=debug")
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + "num_stepz: 3\n")
    assert "was changed, or cut short, after a run of yours wrote it" in refused(f"resume={folder}")
    assert "num_stepz" in refused(f"resume={folder}", "trust=true")
    (folder / "config.yaml").write_text("- no\n- mapping\n")
    assert "cannot be read" in refused(f"resume={folder}")


def refused(capsys: pytest.CaptureFixture[str], options: dict, *arguments: str) -> str:
    """What a program of these options says to arguments that it refuses."""

    @entry_point("Does nothing.", **options)
    def program(config: RunConfig) -> None: ...

    with pytest.raises(SystemExit) as ended:
        program(list(arguments))
    assert ended.value.code in (ExitStatus.bad_input, ExitStatus.bad_config)
    return capsys.readouterr().err


def test_a_cut_configuration_is_refused_wherever_it_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "env.num_envs=4")
    text = (folder / "config.yaml").read_text()
    lines = text.splitlines(keepends=True)
    for count in range(2, len(lines), 13):
        (folder / "config.yaml").write_text("".join(lines[:count]))
        told = refused(capsys, TRAIN, f"resume={folder}", "trust=true")
        assert "is not whole" in told or "cannot be read" in told
        assert "replay.path" in told or "more keys" in told or "cannot be read" in told
    for half in ("".join(lines[:200])[:-3], text[: len(text) // 2], text[: text.index("actor:") + 6]):
        (folder / "config.yaml").write_text(half)
        told = refused(capsys, TRAIN, f"resume={folder}", "trust=true")
        assert "Invalid type" not in told and "Traceback" not in told


def test_the_copy_in_a_checkpoint_is_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path, "run=cartpole")
    whole = (folder / "config.yaml").read_text()
    copy = folder / "checkpoints" / "step_00000010" / "policy" / POLICY_CONFIG
    copy.write_text(whole)
    (folder / "config.yaml").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    told = refused(capsys, TRAIN, f"resume={folder}", "trust=true")
    assert "it lacks replay.path" in told and str(copy).replace("'", "'\"'\"'") in told
    (folder / "config.yaml").unlink()
    assert str(copy).replace("'", "'\"'\"'") in refused(capsys, TRAIN, f"resume={folder}"), "also if it is gone"
    (folder / "config.yaml").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    copy.write_text(whole[:-40])
    assert str(copy) not in refused(capsys, TRAIN, f"resume={folder}", "trust=true"), "a damaged copy is no remedy"


def test_an_edited_configuration_is_whole_if_it_has_all_keys(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "actor.lr=0.25")
    place = folder / "config.yaml"
    place.write_text(place.read_text().replace("lr: 0.25\n", "lr: 0.5\n"))
    assert loaded(TRAIN, f"resume={folder}", "trust=true").actor.lr == 0.5


def test_a_folder_that_this_user_may_not_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path, "run=cartpole")

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)

    @entry_point("Does nothing.", resumes=True)
    def program(config: RunConfig) -> None: ...

    with pytest.raises(SystemExit) as ended:
        program([f"resume={folder}", "trust=true"])
    told = capsys.readouterr().err
    assert ended.value.code == ExitStatus.storage and f"this user may not use {folder}/config.yaml" in told


def of_older(folder: Path, *keys: str) -> None:
    """Make the configuration that of a version that did not have these keys."""
    lines = (folder / "config.yaml").read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if line[0] != "#" and line.partition(":")[0].strip() not in keys)
    (folder / "config.yaml").write_text(signed(kept).replace(f"rlrun {own_version()}", "rlrun 0.1.0"))
    origin = folder / "provenance.json"
    origin.write_text(origin.read_text().replace(f'"rlrun": "{own_version()}"', '"rlrun": "0.1.0"'))


def test_an_older_version_did_not_have_every_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "seed=7")
    of_older(folder, "min_lr_ratio", "clip_returns")
    assert loaded(TRAIN, f"resume={folder}", "trust=true").seed == 7
    assert (
        "rlrun 0.1.0 wrote it, which had no actor.min_lr_ratio, algorithm.clip_returns; their defaults" in caplog.text
    )
    place = folder / "config.yaml"
    copy = folder / "checkpoints" / "step_00000010" / "policy" / POLICY_CONFIG
    copy.write_text(place.read_text())
    place.write_text(place.read_text().replace("seed: 7\n", "seed: 8\n", 1))  # edited, and the copy is as old
    assert loaded(TRAIN, f"resume={folder}", "trust=true").seed == 8


def test_a_key_that_no_version_has_any_more_is_refused_by_name_and_spares_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "seed=3")
    file = folder / "config.yaml"
    text = "".join(file.read_text().splitlines(keepends=True)[2:])
    former = text.replace("\ncluster:\n", "\ncluster:\n  channel_security: curve\n", 1)
    file.write_text(provenance.marked(signed(former)))
    told = refused(capsys, TRAIN, f"resume={folder}")
    assert "Unknown key 'cluster.channel_security'" in told and "Leave it out: env and rollout workers" in told
    assert loaded(EVAL, f"checkpoint={folder}").seed == 3


ROBOT_KEYS = {  # of the root of `env` in earlier versions, whatever the simulator
    "activity": "picking_up_trash",
    "physics_hz": 240,
    "controlled": ["arm_left"],
    "cameras": ["left_realsense_link"],
    "proprio": "full_256",
    "reward": "potential",
    "reward_potential": 2.0,
}


def as_of_old(folder: Path) -> Path:
    """Write the configuration as the versions did that had the keys of the robot at the root of `env`."""
    file = folder / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    for content in tree["env"].values():
        for key in ROBOT_KEYS if isinstance(content, dict) else ():
            content.pop(key, None)
    tree["env"] |= ROBOT_KEYS
    file.write_text(provenance.marked(signed(yaml.safe_dump(tree))))
    return folder


def test_an_old_run_resumes_with_the_keys_of_its_robot_where_they_are_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = as_of_old(run_folder(tmp_path, "env.embedded.reset_spread=0.5"))
    world = loaded(TRAIN, f"resume={folder}").env.section(EmbeddedConfig)
    assert {key: to_dict(world)[key] for key in ROBOT_KEYS} == ROBOT_KEYS and world.reset_spread == 0.5
    assert loaded(EVAL, f"checkpoint={folder}").env.section(EmbeddedConfig) == world
    assert not caplog.text


def test_an_old_run_of_another_world_resumes_without_them(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run=cartpole", "seed=7")
    now = loaded(TRAIN, f"resume={folder}")
    assert loaded(TRAIN, f"resume={as_of_old(folder)}") == now
    assert read_run(folder).config["env"] == yaml.safe_load(provenance.config_yaml(now))["env"]


def test_an_own_world_that_had_them_is_not_imported_for_them(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run=cartpole")
    file = as_of_old(folder) / "config.yaml"
    text = file.read_text().replace("simulator: gymnasium", "simulator: not_there:SPEC")
    file.write_text(provenance.marked(signed("".join(text.splitlines(keepends=True)[2:]))))
    env = resumption(str(folder)).recorded.tree["env"]
    assert set(ROBOT_KEYS) & set(env) == {"reward"} and env["reward"] is None, "the root's key is that of own rewards"


def test_a_policy_is_opened_without_a_removed_key_only_if_it_acts_the_same_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, "env=libero", "policy.kind=cnn", "seed=3")
    file = folder / "config.yaml"
    text = "".join(file.read_text().splitlines(keepends=True)[2:])

    def write(physics: str) -> None:
        former = text.replace("\n  libero:\n", f"\n  libero:\n    backend: native\n    physics: {physics}\n", 1)
        assert former != text
        file.write_text(provenance.marked(signed(former)))

    write("mujoco")
    assert loaded(EVAL, f"checkpoint={folder}").seed == 3
    write("warp")
    told = refused(capsys, EVAL, f"checkpoint={folder}")
    assert "Unknown key 'env.libero.physics'" in told and "env.simulator=libero_warp" in told


def test_a_cut_policy_is_refused_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path, "run=cartpole")
    policy = folder / "checkpoints" / "step_00000010" / "policy"
    text = (folder / "config.yaml").read_text()
    (policy / POLICY_CONFIG).write_text(text[: text.index("\npolicy:") + 1])
    assert "is not whole" in refused(capsys, EVAL, f"checkpoint={policy}")


@pytest.mark.parametrize("where", ["first line", "provenance"])
@pytest.mark.parametrize("more", ["quantum:\n  depth: 3\n", "", "  lr_schedule: wsd\n"])
def test_what_a_newer_version_wrote_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, more: str
) -> None:
    folder = run_folder(tmp_path, "run=cartpole")
    place, origin = folder / "config.yaml", folder / "provenance.json"
    text = place.read_text()
    text = re.sub(r"  lr_schedule: \w+\n", more, text) if "wsd" in more else text + more
    if where == "first line":
        place.write_text(text.replace(f"rlrun {own_version()}", "rlrun 3.1.0", 1))
    else:
        place.write_text(text)
        origin.write_text(origin.read_text().replace(f'"rlrun": "{own_version()}"', '"rlrun": "3.1.0"'))
    if not more:
        assert loaded(TRAIN, f"resume={folder}", "trust=true").name == "cartpole", (
            "it has no key that this version does not know"
        )
        return
    told = refused(capsys, TRAIN, f"resume={folder}", "trust=true")
    assert "was written by a newer version, rlrun 3.1.0" in told and "Install rlrun 3.1.0 or newer" in told


def test_a_section_that_is_none_is_told_without_the_words_of_a_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "odd.yaml").write_text("# @package _global_\nactor:\n")
    for told in (refused(capsys, {}, "run=odd", f"--config-dir={tmp_path}"), refused(capsys, {}, "actor.lr=null")):
        assert "Invalid" not in told and "Merge error" not in told


def test_the_policy_of_somebody_else_is_evaluated_in_its_world_of_libero(tmp_path: Path) -> None:
    """Its starts are ranges, and its expert is left out: no policy needs one to act."""
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / POLICY_CONFIG
    provenance.write_config(load(["run=libero_five_tasks"]), file)
    file.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith("#")) + "\n")
    recorded = config_of_policy(tmp_path)
    assert recorded is not None and recorded.remark is not None and "env.libero.expert" in recorded.remark
    own = recorded.tree["env"]["libero"]
    assert own["validation_starts"] == "40:50" and "expert" not in own
