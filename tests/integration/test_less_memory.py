"""A first update without room on the device: all ranks start again with smaller micro-batches, and learn the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.cluster.launch import Machines
from rlrun.config.loader import load
from rlrun.observability.run_files import read_json_lines
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.lifecycle import Run
from rlrun.training.loop import synchronous
from rlrun.training.session import open_session

pytestmark = pytest.mark.integration

# PPO on a device that has room for so many rows of a micro-batch.
TIGHT = """
import dataclasses
import torch
from rlrun.algorithms import ppo, spec

MOST_ROWS = {most_rows}

class TightPPO(ppo.PPO):
    def loss(self, outputs, targets):
        if len(targets.advantages) > MOST_ROWS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\\nmore")
        return super().loss(outputs, targets)

SPEC = dataclasses.replace(spec.PPO, name="{name}", algorithm="{name}:TightPPO")
"""
ARGUMENTS = [
    "run=debug",
    "num_steps=1",
    "policy.kind=cnn",
    "actor.num_workers=2",
    "env.num_envs=4",
    "algorithm.horizon=8",
]
ARGUMENTS += ["algorithm.global_batch_size=32", "logging.video_episodes=0", "evaluation.num_episodes=1"]
ARGUMENTS += ["logging.tensorboard=false", "algorithm.target_kl=null"]


def trained(folder: Path, *arguments: str) -> tuple[ExitStatus, list[dict]]:
    config = load([*ARGUMENTS, f"output_dir={folder}", *arguments])
    with open_session(config, Machines(config), resumed_by="rlrun.train") as session:
        run = Run(session)
        status = run.complete(synchronous)
        assert run.config is session.config is session.controller.config
    return status, list(read_json_lines(folder / "metrics.jsonl"))


@pytest.fixture
def tight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call with the most rows; returns the arguments that choose the algorithm."""

    def make(name: str, most_rows: int) -> list[str]:
        (tmp_path / f"{name}.py").write_text(TIGHT.format(name=name, most_rows=most_rows))
        monkeypatch.chdir(tmp_path)
        return [f"algorithm.name={name}:SPEC"]

    return make


@pytest.mark.long
def test_the_update_is_repeated_with_half_the_rows(tmp_path: Path, tight, capsys: pytest.CaptureFixture) -> None:
    """The first try has 16 rows a micro-batch, the second 8, which fit."""
    status, metrics = trained(tmp_path / "tight", *tight("tight8", 8), "actor.micro_batch_size=16")
    assert status is ExitStatus.ok and len(metrics) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("actor.micro_batch_size=8 instead of 16") == 1
    assert "micro_batch_size: 8" in (tmp_path / "tight" / "config.yaml").read_text()
    _, expected = trained(tmp_path / "roomy", "actor.micro_batch_size=8")
    for name in ("policy_loss", "value_loss", "grad_norm", "success_rate"):
        assert [one.get(name) for one in metrics] == [one.get(name) for one in expected]


def test_one_row_without_room_ends_the_run(tmp_path: Path, tight) -> None:
    """Nothing smaller is left: the error names the key and what to do."""
    arguments = ["actor.micro_batch_size=1", "actor.activation_checkpointing=true", "cluster.kind=local"]
    arguments += [f"{role}.num_workers=1" for role in ("env", "rollout", "actor")]
    with pytest.raises(RunError, match=r"actor/0 ran out of device memory") as raised:
        trained(tmp_path / "none", *tight("tight0", 0), *arguments)
    assert raised.value.key == "actor.micro_batch_size" and raised.value.exit_status is ExitStatus.placement
