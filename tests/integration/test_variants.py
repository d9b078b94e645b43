"""Keys that switch on whole mechanisms, each through the whole program, with what it must leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.data.checkpoint_folder import find_corruption
from rlrun.edges.incoming_weights import ArrivedWeights
from rlrun.edges.wrong_message import wrong_message
from rlrun.train import train

pytestmark = pytest.mark.integration

SMALL = ["run=single_process", "logging.tensorboard=false", "logging.video_episodes=0", "evaluation.num_episodes=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Call with a name and overrides; returns (run folder, metrics of every step)."""
    root = tmp_path_factory.mktemp("variants")

    def call(name: str, *overrides: str) -> tuple[Path, list[dict]]:
        folder = root / name
        assert train(load([*SMALL, f"output_dir={folder}", f"cache_dir={root}/cache", *overrides])) == 0
        return folder, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    return call


def test_grpo_has_advantages_and_a_gradient_without_a_critic(run):
    """Potential of unequal episodes in a group: the policy moves, and nothing of a critic is logged."""
    groups = ["algorithm.name=grpo", "algorithm.grpo.group_size=4", "env.num_envs=8"]
    whole_episodes = ["algorithm.horizon=15", "algorithm.global_batch_size=60", "actor.micro_batch_size=30"]
    _, metrics = run("grpo", *groups, *whole_episodes, "actor.lr=1e-3")
    assert all(line["advantage_abs"] > 0 for line in metrics)
    assert any(line["grad_norm"] > 0 for line in metrics)
    assert not any("value_loss" in line for line in metrics)


@pytest.mark.long
def test_wandb_and_profile(run):
    folder, _ = run("watched", "logging.wandb=true", "logging.profile_steps=[1]")
    (stored,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert stored.stat().st_size > 1000
    trace = json.loads((folder / "profile" / "step-1-actor-0.json").read_text())
    assert any("addmm" in event.get("name", "") for event in trace["traceEvents"])


def test_low_precision_offload_and_recomputation(run):
    low = ["actor.param_precision=bf16", "rollout.precision=bf16"]
    _, metrics = run("thrifty", *low, "actor.cpu_offload=true", "actor.activation_checkpointing=true")
    assert all(line["num_nonfinite"] == 0 for line in metrics)
    assert all(line["rollout_logprob_gap"] < 0.1 for line in metrics)


@pytest.mark.long
def test_kl_towards_the_start(run):
    """At the first step policy and reference are one; at the second they are not."""
    _, metrics = run("kept", "algorithm.kl_coef=0.1", "algorithm.ppo.critic_warmup_steps=0", "actor.lr=1e-3")
    assert metrics[-1]["kl_reference"] > 0


TIMES = ("_s", "per_second")


def test_roles_that_share_a_device_learn_the_same_bit_for_bit(run):
    """Storages really are empty meanwhile; what is evaluated, learned and saved does not change."""
    both = [run(name, f"placement.offload={name == 'offload'}")[1] for name in ("plain", "offload")]
    for plain, offloaded in zip(*both, strict=True):
        assert plain.keys() == offloaded.keys()
        learned = {key for key in plain if not key.endswith(TIMES) and not key.startswith(("busy_", "memory_"))}
        assert {key: plain[key] for key in learned} == {key: offloaded[key] for key in learned}


@pytest.mark.long
def test_weights_that_come_damaged_to_the_device_are_sent_again(run, monkeypatch):
    """Once, of the second version; the run goes on as if nothing had happened."""
    verify, struck = ArrivedWeights.verify, []

    def damaged_once(self, bucket):
        if bucket.policy_version == 1 and not struck:
            struck.append(bucket.index)
            raise wrong_message("actor/0", "bucket 0 of the weights of version 1 arrived with other bytes", "a test")
        verify(self, bucket)

    monkeypatch.setattr(ArrivedWeights, "verify", damaged_once)
    _, metrics = run("damaged", "placement.offload=true")
    assert struck == [0] and len(metrics) > 1
    assert all(line["rollout_logprob_gap"] < 1e-3 for line in metrics)


def test_checkpoints_in_the_background_are_those_of_a_run_that_waits(run):
    """Two are written in the background; the run waits for the last one."""
    often = ["num_steps=3", "checkpoint.every_steps=1", "checkpoint.keep_last=3"]
    folders = [run(f"saves-{value}", *often, f"checkpoint.is_asynchronous={value}")[0] for value in ("false", "true")]
    for step in ("step_00000001", "step_00000002", "step_00000003"):
        plain, beside = (folder / "checkpoints" / step for folder in folders)
        assert find_corruption(beside) == []
        weights = [next((folder / "policy").glob("*.safetensors")) for folder in (plain, beside)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list((folders[1] / "checkpoints").glob(".*writing*"))


def test_adapters_learn_and_are_merged_into_the_exported_policy(run):
    folder, metrics = run("adapters", "actor.lora.rank=4", "placement.offload=true", "actor.lr=1e-3")
    assert all(line["rollout_logprob_gap"] < 1e-3 for line in metrics)  # rollout workers follow, merged
    assert all(line["grad_norm"] > 0 for line in metrics)
    assert "lora" not in (folder / "policy" / "model.safetensors").read_bytes()[:100_000].decode("latin1")


@pytest.mark.long
def test_a_flow_policy_changes_its_noise(run):
    noise = ["policy=smolvla", "policy.smolvla.sampling=flow_noise", "sft.num_steps=4", "algorithm.entropy_coef=0.01"]
    folder, metrics = run("flow_noise", *noise, "actor.lr=1e-3", "algorithm.ppo.critic_warmup_steps=0")
    assert all(line["rollout_logprob_gap"] < 1e-3 for line in metrics)
    assert metrics[0]["entropy"] != metrics[-1]["entropy"]
    assert json.loads((folder / "policy" / "flow_policy.json").read_text())["learned_range"] == [0.16, 0.32]


@pytest.mark.parametrize(
    ("kind", "in_lerobot"),
    [
        pytest.param("smolvla", "smolvla", marks=pytest.mark.long),
        pytest.param("pi05", "pi05", marks=pytest.mark.long),
        ("gr00t", "groot"),
    ],
)
def test_a_flow_policy_imitates_learns_and_keeps_to_its_start(run, kind, in_lerobot):
    """By Flow-SDE: log-probabilities of acting and learning agree, the KL is the closed one, and its folder opens
    again."""
    flow = [f"policy={kind}", "sft.num_steps=4", "actor.lr=1e-3", "algorithm.ppo.critic_warmup_steps=0"]
    flow += ["algorithm.kl_coef=0.1", "algorithm.update_epochs=2", "actor.activation_checkpointing=true"]
    folder, metrics = run(f"flow_{kind}", *flow)
    assert all(line["rollout_logprob_gap"] < 1e-3 for line in metrics)
    assert metrics[-1]["kl_reference"] > 1e-6
    assert all(1e-6 < line["kl_exact"] < 10 for line in metrics)  # the second epoch moves on from what acted
    assert json.loads((folder / "policy" / "config.json").read_text())["type"] == in_lerobot


KINDS = ["smolvla", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("pi0", "pi05", "gr00t"))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flow_policy_learns_from_its_own_actions(run, kind):
    """By NFT, with its pull towards the first policy; without the filter, so that a few episodes have some signal."""
    groups = ["env.num_envs=8", "algorithm.nft.group_size=4", "algorithm.filter_groups.enable=false", "actor.lr=1e-3"]
    whole_episodes = ["algorithm.horizon=15", "algorithm.global_batch_size=60", "actor.micro_batch_size=30"]
    _, metrics = run(f"nft_{kind}", f"policy={kind}_nft", "sft.num_steps=4", *groups, *whole_episodes)
    assert all(line["rollout_logprob_gap"] < 1e-3 and line["own_flow_error"] > 0 for line in metrics)
    assert metrics[-1]["kl_reference"] > 1e-9 and any(line["grad_norm"] > 0 for line in metrics)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_flow_policy_is_steered(run, kind):
    """By DSRL: only the noise actor changes, and rollout workers follow it."""
    own = ["algorithm.dsrl.num_updates=5", "algorithm.dsrl.warmup_steps=1", "algorithm.dsrl.batch_size=32"]
    folder, metrics = run(f"dsrl_{kind}", f"policy={kind}_dsrl", "sft.num_steps=4", "actor.lr=1e-2", *own)
    assert [line["num_optimizer_steps"] for line in metrics] == [0, 5]
    assert metrics[-1]["critic_loss"] > 0
    assert json.loads((folder / "policy" / "flow_policy.json").read_text())["steering"]["bound"] == 1.5


@pytest.mark.long
def test_a_flow_policy_has_a_gradient_from_comparing_groups(run):
    groups = ["algorithm.name=grpo", "algorithm.grpo.group_size=4", "env.num_envs=8", "actor.lr=1e-3"]
    whole_episodes = ["algorithm.horizon=15", "algorithm.global_batch_size=60", "actor.micro_batch_size=30"]
    _, metrics = run("flow_grpo", "policy=smolvla", "sft.num_steps=4", *groups, *whole_episodes)
    assert any(line["grad_norm"] > 0 for line in metrics)
    assert all(line["num_nonfinite"] == 0 for line in metrics)
