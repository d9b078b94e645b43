"""The run folder says what the run was."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from rlrun.config import provenance
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig


def test_written_files(tmp_path: Path) -> None:
    config = load(["run=debug", "env.renderer=raycast"])
    provenance.write(config, tmp_path / "run")
    tree = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert tree["env"]["renderer"] == "raycast"
    assert tree["algorithm"]["gamma"] == RunConfig().algorithm.gamma
    diff = yaml.safe_load((tmp_path / "run" / "config_diff.yaml").read_text())
    assert diff["env"]["renderer"] == "raycast"
    assert "gamma" not in diff["algorithm"]
    origin = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert origin["packages"]["hydra-core"].startswith("1.3")


def test_free_mappings_are_written_too(tmp_path: Path) -> None:
    """Node groups are frozen like all else."""
    config = load(["placement=dual_node"])
    provenance.write(config, tmp_path)
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert tree["placement"]["nodes"]["train"] == {"count": 1, "accelerator": "without_rt_cores"}


def test_no_difference_from_defaults() -> None:
    assert provenance.diff_from_defaults(RunConfig()) == {}


def test_resolved_configuration_loads_back(tmp_path: Path) -> None:
    config = load(["run=debug", "placement.roles.actor=0-1"])
    (tmp_path / "run").mkdir()
    text = "# @package _global_\n" + provenance.config_yaml(config)
    (tmp_path / "run" / "again.yaml").write_text(text)
    assert load(["run=again"], str(tmp_path)) == config


def test_the_former_configuration_is_kept(tmp_path: Path) -> None:
    first, second = load(["run=debug"]), load(["run=debug", "seed=8"])
    for config, step in ((first, 0), (first, 5), (second, 5), (first, 5)):
        provenance.write(config, tmp_path, step)
    kept = {path.name: yaml.safe_load(path.read_text())["seed"] for path in tmp_path.glob("config_to_step_*")}
    assert kept == {"config_to_step_00000005.yaml": 0, "config_to_step_00000005_2.yaml": 8}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"] == 0
    assert not list(tmp_path.glob(".*")), "a draft is left"
