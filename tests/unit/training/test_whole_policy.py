"""Which folder is evaluated and served, and that a damaged one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config import provenance
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.data import checksums
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.policy_folders import policy_folder, require_known_base


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


def test_the_base_policy_of_a_checkpoint_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in the checkpoint's run or in the cache, or the user names it; that of an own run may be anywhere."""
    monkeypatch.setenv("HOME", str(tmp_path / "stranger"))
    (tmp_path / "stranger").mkdir()
    (tmp_path / "me").mkdir()
    (tmp_path / "secret").mkdir()
    run_dir, outside = tmp_path / "run", tmp_path / "secret"
    checkpoint = run_dir / "checkpoints" / "step_00000001"
    checkpoint.mkdir(parents=True)
    config = load(["run=cartpole", f"cache_dir={tmp_path}/cache"])
    provenance.write(config, run_dir)
    require_known_base(outside, checkpoint, config)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for base in (run_dir / "first_policy", tmp_path / "cache" / "sft-1"):
        require_known_base(base, checkpoint, config)
    for base in (outside, run_dir / ".." / "secret"):
        with pytest.raises(RunError, match="outside of its run") as refused:
            require_known_base(base, checkpoint, config)
        assert refused.value.key == "policy.path" and str(base) in str(refused.value.remedy)
    require_known_base(outside, checkpoint, load(["run=cartpole", f"policy.path={outside}"]))
