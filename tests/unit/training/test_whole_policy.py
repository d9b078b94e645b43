"""Which folder is evaluated and served, and that a damaged one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.schema import RunConfig
from rlrun.data import checksums
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.policy_folders import policy_folder


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Names a run folder with a policy in it."""
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "config.json").write_text("{}")
    (policy / "model.safetensors").write_bytes(b"weights")
    checksums.write(policy)
    config = RunConfig()
    config.evaluation.checkpoint = str(tmp_path)
    return config


def test_a_run_folder_or_the_policy_itself(config: RunConfig, tmp_path: Path) -> None:
    assert policy_folder(config) == tmp_path / "policy"
    config.evaluation.checkpoint = str(tmp_path / "policy")
    assert policy_folder(config) == tmp_path / "policy"


def test_a_damaged_policy_is_refused_by_file_name(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "policy/model.safetensors").write_bytes(b"weightS")
    with pytest.raises(RunError) as refused:
        policy_folder(config)
    error = refused.value
    assert (error.key, error.exit_status) == ("evaluation.checkpoint", ExitStatus.bad_input)
    assert "model.safetensors is damaged" in error.cause
    config.checkpoint.verify = False
    assert policy_folder(config) == tmp_path / "policy"


@pytest.mark.parametrize("checkpoint", [None, "nowhere"])
def test_no_policy(config: RunConfig, checkpoint: str | None) -> None:
    config.evaluation.checkpoint = checkpoint
    with pytest.raises(RunError):
        policy_folder(config)
