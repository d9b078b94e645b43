"""Whole programs on the device, to their end: no tensor is where it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.config.loader import load
from tests.pretended_cuda.conftest import Run
from tests.pretended_cuda.events import EVENTS, Kind

SMALL = ["run=single_process", "num_steps=1", "logging.tensorboard=false", "logging.video_episodes=0"]
SMALL += ["demos.num_episodes=1", "sft.num_steps=1", "sft.lr_warmup_steps=0", "evaluation.num_episodes=1"]
SMALL += ["algorithm.horizon=2", "algorithm.global_batch_size=4", "actor.micro_batch_size=2"]
BF16 = ["rollout.precision=bf16", "actor.param_precision=bf16", "actor.reduce_precision=bf16"]
LORA = ["actor.lora.rank=4"]
PROGRAMS = {
    "SmolVLA by Flow-SDE, KL, full_shard, checkpointing": [
        *("policy=smolvla", "sft.num_steps=2", "algorithm.kl_coef=0.1", "actor.activation_checkpointing=true"),
        "policy.smolvla.critic_input=expert",
    ],
    "pi0.5 by Flow-SDE, expert only, shard_grad_op": [
        *("policy=pi05", "sft.num_steps=2", "actor.sharding=shard_grad_op", "policy.pi.train_expert_only=true"),
    ],
    "GR00T by Flow-Noise, expert only, full_shard, checkpointing": [
        *("policy=gr00t", "sft.num_steps=2", "policy.gr00t.train_expert_only=true"),
        *("policy.gr00t.sampling=flow_noise", "actor.activation_checkpointing=true"),
    ],
    "SmolVLA by DSRL": [
        *("policy=smolvla_dsrl", "sft.num_steps=2", "num_steps=2"),
        *("algorithm.dsrl.warmup_steps=0", "algorithm.dsrl.num_updates=2", "algorithm.dsrl.batch_size=4"),
    ],
    "KL, entropy, full_shard, checkpointing": [
        *("algorithm.kl_coef=0.1", "algorithm.entropy_coef=0.01", "actor.activation_checkpointing=true"),
        "policy.openvla_oft.center_crop=true",
    ],
    "LoRA merged by the actor, shard_grad_op, a checkpoint in the background": [
        *(*LORA, "placement.offload=true", "actor.sharding=shard_grad_op", "num_steps=2"),
        *("checkpoint.every_steps=1", "checkpoint.is_asynchronous=true"),
    ],
    "LoRA merged by the rollout worker, GRPO, cpu_offload": [
        *(*LORA, "actor.cpu_offload=true"),
        *("algorithm.name=grpo", "algorithm.grpo.group_size=2", "algorithm.horizon=15"),
        *("algorithm.global_batch_size=30", "actor.micro_batch_size=15"),
    ],
}


def trained(overrides: list[str]) -> tuple[int, int]:
    """Return the exit status of rlrun.train, and the number of downloads: none if no tensor was on the device."""
    from rlrun.train import train

    EVENTS.counts.clear()
    status = train(load(overrides))
    return int(status), sum(count for event, count in EVENTS.counts.items() if event.kind is Kind.download)


def metrics_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretended")


LONG = {
    name: [pytest.mark.long]
    for name in PROGRAMS
    if any(word in name for word in ("KL", "Flow", "DSRL", "by the actor"))
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, [])) for name in PROGRAMS])
def test_training_ends(on_cuda: Run, root: Path, name: str) -> None:
    folder = root / name.replace(", ", "_").replace(" ", "_")
    words = [*SMALL, *BF16, f"output_dir={folder}", f"cache_dir={root}/cache", *PROGRAMS[name]]
    status, downloads = on_cuda(trained, words)
    assert status == 0 and downloads > 0
    line = metrics_of(folder)[-1]
    assert line["num_nonfinite"] == 0 and line["grad_norm"] > 0
    assert line.get("rollout_logprob_gap", 0.0) < 0.05  # the rollout's copy got the weights
    assert (folder / "policy" / "model.safetensors").stat().st_size > 10_000


def evaluated(overrides: list[str]) -> int | str | None:
    """Return the exit status of rlrun.eval; None for success."""
    from rlrun import eval as evaluation

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["rlrun.eval", *overrides])
        evaluation.main()
    return ended.value.code


def acted(folder: str) -> list[int]:
    """Act with the exported policy on the device; returns the shape of its actions."""
    import numpy as np

    from rlrun import load_policy

    return list(load_policy(folder).chunk(proprio=np.zeros(4, np.float32)).shape)


def test_cartpole_resumes_is_evaluated_and_its_policy_acts(on_cuda: Run, root: Path) -> None:
    folder = root / "cartpole"
    same = ["run=cartpole", "cluster.kind=local", "logging.tensorboard=false", "logging.video_episodes=0"]
    same += ["algorithm.horizon=16", "algorithm.global_batch_size=64", "actor.micro_batch_size=32"]
    same += ["evaluation.num_episodes=1", "env.max_control_steps=20", "checkpoint.every_steps=1"]
    for num_steps in (1, 2):
        status, _ = on_cuda(trained, [*same, f"output_dir={folder}", f"num_steps={num_steps}"])
        assert status == 0
    assert [line["step"] for line in metrics_of(folder)] == [1, 2]
    assert not on_cuda(evaluated, [f"checkpoint={folder}", f"output_dir={root}/evaluation"])
    assert on_cuda(acted, str(folder)) == [1, 1]
