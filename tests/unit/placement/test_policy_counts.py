"""The counts that a plan gets: estimated, from the cache, or from a process; of a guest's policy too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.placement import policy_counts as counts_of
from rlrun.placement.policy_counts import policy_counts
from rlrun.policies.counting import count
from rlrun.system.errors import RunError

GUEST = """
import torch
from torch import nn

from rlrun.policies.distributions import Gaussian
from rlrun.policies.policy import Policy
from rlrun.policies.spec import PolicySpec

SPEC = PolicySpec("wide", lambda found: False, "wide_policy:Wide", from_scratch="wide_policy:Wide.from_scratch")


class Network(nn.Module):
    def __init__(self, num_proprio, num_actions):
        super().__init__()
        self.inputs = nn.Linear(num_proprio, 1024)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))
        self.actions = nn.Linear(1024, num_actions)

    def forward(self, x):
        x = self.inputs(x)
        for block in self.blocks:
            x = block(x)
        mean = self.actions(x).float()
        return mean


class Wide(Policy):
    def __init__(self, num_proprio, num_actions):
        self.module, self.device = Network(num_proprio, num_actions), torch.device("cpu")
        self.num_actions, self.num_action_chunks, self.num_proprio = num_actions, 1, num_proprio

    def __call__(self, images, instructions, proprio, temperature):
        print("a policy may print")
        mean = self.module(torch.from_numpy(proprio).to(self.device))
        return Gaussian(mean, torch.zeros_like(mean), temperature), None

    def stacks(self):
        return [list(self.module.blocks)]

    def decode_actions(self, tokens):
        return tokens[:, None]

    def save(self, folder, named_tensors=None):
        raise NotImplementedError

    @classmethod
    def from_folder(cls, folder, files, run):
        raise NotImplementedError

    @classmethod
    def from_scratch(cls, config, spaces):
        return cls(spaces.num_proprio, spaces.num_actions)
"""


@pytest.fixture(autouse=True)
def forgetful() -> None:
    counts_of.remembered.clear()


@pytest.fixture
def wide(tmp_path: Path) -> RunConfig:
    """A run of a policy from outside, with 4.2 million parameters."""
    (tmp_path / "wide_policy.py").write_text(GUEST)
    chosen = ["run=halfcheetah", "policy.kind=wide_policy:SPEC", f"cache_dir={tmp_path / 'cache'}"]
    try:
        return load([*chosen, "actor.activation_checkpointing=true"], str(tmp_path))
    finally:
        sys.modules.pop("wide_policy", None)


def no_process(*command: object, **options: object) -> None:
    raise AssertionError("a process was started")


def test_a_guests_policy_is_counted_in_a_process_and_once(
    wide: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = policy_counts(wide)
    blocks = 4 * 1024 * 1024
    assert blocks < counts.num_parameters < 1.2 * blocks
    assert counts.act.flops == pytest.approx(2 * counts.num_parameters, rel=0.01)
    assert counts.update.flops == pytest.approx(6 * counts.num_parameters, rel=0.05)
    assert counts.recompute.flops == pytest.approx(counts.update.flops + 2 * blocks, rel=0.01)
    assert [len(stack.block_parameters) for stack in counts.stacks] == [4]
    assert counts == count(wide)
    monkeypatch.setattr(subprocess, "run", no_process)
    assert policy_counts(wide) == counts
    counts_of.remembered.clear()
    assert policy_counts(wide) == counts


@pytest.mark.long
def test_a_damaged_file_of_the_cache_is_counted_anew(wide: RunConfig, tmp_path: Path) -> None:
    counts = policy_counts(wide)
    (file,) = (tmp_path / "cache").glob("counts-*.json")
    file.write_text(file.read_text()[:50])
    counts_of.remembered.clear()  # as another process
    assert policy_counts(wide) == counts
    assert len(file.read_text()) > 50


def test_counts_of_changed_sources_or_sizes_are_others(wide: RunConfig, tmp_path: Path) -> None:
    before = counts_of.digest(wide)
    assert counts_of.digest(wide) == before
    (tmp_path / "wide_policy.py").write_text(GUEST.replace("1024", "2048"))
    after = counts_of.digest(wide)
    assert after != before
    other = load(["run=halfcheetah", "policy.kind=wide_policy:SPEC", "actor.param_precision=bf16"], str(tmp_path))
    assert counts_of.digest(other) != after


@pytest.mark.long
def test_a_policy_that_reads_numbers_is_not_counted(wide: RunConfig, tmp_path: Path, caplog) -> None:
    """On cores it runs all the same: the plan says what it does not know."""
    (tmp_path / "wide_policy.py").write_text(GUEST.replace("return mean\n", "return mean * mean.max().item()\n"))
    assert policy_counts(wide) == replace(counts_of.estimated(wide, 0), is_counted=False)
    assert "an unknown number of parameters" in caplog.text and "meta" in caplog.text


def test_counting_ends_when_its_process_neither_computes_nor_waits_for_a_core(
    wide: RunConfig, tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: a busy machine is no reason to place a policy of unknown size."""
    monkeypatch.setattr(counts_of, "STUCK_S", 0.5)
    monkeypatch.setattr(counts_of, "_POLL_S", 0.1)
    worked_s = iter(range(10**6))
    monkeypatch.setattr(counts_of, "scheduled_seconds", lambda pids: float(next(worked_s)))
    assert policy_counts(wide).is_counted
    (tmp_path / "wide_policy.py").write_text(GUEST + "\nimport time\ntime.sleep(600)\n")
    monkeypatch.setattr(counts_of, "scheduled_seconds", lambda pids: 1.0)
    assert not policy_counts(wide).is_counted
    assert "its process did not compute for 0.5 s" in caplog.text


def test_an_error_of_the_policys_folder_comes_back_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "openvla"}')
    with pytest.raises(RunError) as raised:
        policy_counts(load([f"policy.path={tmp_path}", f"cache_dir={tmp_path}"]))
    assert raised.value.key == "policy.path"


@pytest.mark.parametrize("chosen", [[], ["run=cartpole"], ["run=halfcheetah"]])
def test_small_policies_start_no_process(chosen: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "run", no_process)
    config = load([*chosen, f"cache_dir={tmp_path}"])
    estimated, counted = policy_counts(config), count(config)
    assert estimated.num_parameters == pytest.approx(counted.num_parameters, rel=0.1)
    assert list(tmp_path.iterdir()) == []
