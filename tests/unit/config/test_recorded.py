"""The configuration that a run left: found beside its checkpoints and in exported policies, and overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config import provenance
from rlrun.config.loader import entry_point, load
from rlrun.config.recorded import POLICY_CONFIG, config_of_policy, quoted, resumption
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError, RunErrors
from rlrun.system.exit_status import ExitStatus


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
