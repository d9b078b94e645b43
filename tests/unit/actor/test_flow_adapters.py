"""LoRA on flow policies: adapters of expert and VLM train, rollout workers follow, the folder is merged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.rollout.adapted import adapted_weights
from rlrun.rollout.backend import unsent_names
from rlrun.rollout.hf import HFBackend
from rlrun.system.errors import RunError
from rlrun.system.telemetry import Telemetry
from tests.numerics import norm_error
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import B, T, share, trajectory
from tests.unit.policies.flow.test_policies import SENTENCES, config, new_policy, section

PARTS = {
    "smolvla": ("text_model", "lm_expert"),
    "pi05": ("language_model", "gemma_expert"),
    "gr00t": ("language_model", "action_head"),
}


def run(kind: str, of_vlm: bool, is_merged: bool) -> RunConfig:
    vlm, expert = PARTS[kind]
    adapters = [
        "actor.lora.rank=2",
        f"actor.lora.targets=[{vlm},{expert}]" if of_vlm else f"actor.lora.targets=[{expert}]",
        f"placement.offload={is_merged}",
        f"{section(kind)}.train_expert_only={not of_vlm}",
    ]
    return config(kind, *adapters, "actor.lr=1e-2")


def observed(seed: int) -> Trajectory:
    images = np.random.default_rng(seed).integers(0, 256, (T, B, 1, 32, 32, 3), dtype=np.uint8)
    return dataclasses.replace(trajectory(seed), images=images, instructions=SENTENCES)


def acted(policy: FlowPolicy, seed: int) -> Trajectory:
    """Return made-up chunk steps with choices of `policy`, whose chunks were executed whole."""
    seen = observed(seed)
    images, proprio = seen.images.reshape(T * B, 1, 32, 32, 3), seen.proprio.reshape(T * B, -1)
    sentences = [SENTENCES[i] for i in seen.instruction_index.flatten()]
    with torch.inference_mode():
        distribution, values = policy(images, sentences, proprio, 1.0)
        tokens = distribution.sample(np.arange(T * B, dtype=np.uint64))
        logprobs = distribution.logprobs(tokens)
    assert values is not None
    chosen = {
        "tokens": tokens.numpy().reshape(T, B, -1),
        "logprobs": logprobs.numpy().reshape(T, B, -1),
        "values": values.numpy().reshape(T, B),
    }
    return dataclasses.replace(seen, **chosen, step_valid=np.ones((T, B, 2), bool))


def followed(folder: str, kind: str, of_vlm: bool, is_merged: bool) -> tuple[float, set[str], list[str]]:
    """Return the gap of log-probabilities after one update and one version, trained names, and sent names."""
    settings = run(kind, of_vlm, is_merged)
    policy, weights = open_to_shard(folder, settings)
    rank = dist.get_rank()
    learner = Learner(settings, policy, rank, dist.get_world_size(), "cpu", Telemetry(f"actor/{rank}"), weights=weights)
    serving = open_policy(folder, torch.float32, "cpu", settings)
    assert isinstance(serving, FlowPolicy)
    metrics = update(learner, share(acted(serving, 0)))
    assert metrics["rollout_logprob_gap"] < 1e-4
    adapted = adapted_weights(serving, settings, torch.device("cpu"))
    backend = HFBackend(serving, unsent_names(serving, settings), adapted=adapted)
    layout = lay_out(learner.weight_layout(), 1_000_000)
    for bucket in pack(learner.named_weights(), layout, 1):
        backend.apply(bucket)
    mine = share(acted(serving, 1))
    tokens = torch.tensor(mine.tokens[0])
    sentences = [SENTENCES[i] for i in mine.instruction_index[0]]
    with torch.no_grad():
        distribution, _ = learner.forward(mine.images[0], sentences, mine.proprio[0], tokens)
        gap = norm_error(distribution.logprobs(tokens), mine.logprobs[0])
    trained = {name for name, parameter in learner.sharded.module.named_parameters() if parameter.requires_grad}
    return gap, trained, [name for name, _ in learner.weight_layout()]


@pytest.mark.parametrize(
    ("kind", "of_vlm", "is_merged"),
    [
        ("smolvla", True, False),
        ("gr00t", False, True),
        pytest.param("pi05", False, True, marks=pytest.mark.long),
        pytest.param("gr00t", True, False, marks=pytest.mark.long),
        pytest.param("smolvla", True, True, marks=pytest.mark.long),
        pytest.param("smolvla", False, True, marks=pytest.mark.long),
        pytest.param("pi05", True, True, marks=pytest.mark.long),
        pytest.param("pi05", True, False, marks=pytest.mark.long),
    ],
)
def test_a_rollout_worker_follows_the_adapters(
    two_ranks: RankPool, tmp_path: Path, kind: str, of_vlm: bool, is_merged: bool
) -> None:
    new_policy(kind).save(tmp_path)
    vlm, expert = PARTS[kind]
    for gap, trained, sent in two_ranks.run(followed, str(tmp_path), kind, of_vlm, is_merged):
        assert gap < 1e-4
        adapters = {name for name in trained if ".lora_" in name}
        assert all(name in adapters or "value_head" in name or "action_" in name for name in trained)
        assert any(f".{expert}." in name for name in adapters)
        assert any(f".{vlm}." in name for name in adapters) is of_vlm
        assert any(".lora_" in name for name in sent) is not is_merged
        assert not any("embed_tokens" in name or "vision" in name for name in sent)


def test_adapters_that_would_never_train_are_refused() -> None:
    adapters = ["policy=smolvla", "actor.lora.rank=4", "actor.lora.targets=[text_model]"]
    load(adapters)  # a new policy trains whole
    with pytest.raises(RunError, match="would never train"):
        load([*adapters, "policy.smolvla.train_expert_only=true"])
    with pytest.raises(RunError, match="leaves the network as it is"):
        load(["policy=smolvla_dsrl", "actor.lora.rank=4"])
    with pytest.raises(RunError, match=r"actor\.lora\.targets") as refused:
        load(["policy=pi05", "actor.lora.rank=4", "actor.lora.targets=[lm_expert]"])
    assert "gemma_expert" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("smolvla", ["lm_expert"]),
        ("pi0", ["gemma_expert"]),
        ("gr00t", ["action_head"]),
        ("openvla_oft", ["language_model", "vision_backbone"]),
    ],
)
def test_adapters_are_where_the_kind_has_them(kind: str, targets: list[str]) -> None:
    """Null takes the parts that the spec names; a part that is given stays."""
    policy = "policy.kind=openvla_oft" if kind == "openvla_oft" else f"policy={kind}"
    lora = load([policy, "actor.lora.rank=4"]).actor.lora
    assert lora.targets == targets
    assert lora.trained_whole is not None
    assert "value_head" in lora.trained_whole
    given = load([policy, "actor.lora.rank=4", "actor.lora.trained_whole=[]"]).actor.lora
    assert (given.targets, given.trained_whole) == (targets, [])


def test_a_kind_without_parts_refuses_adapters() -> None:
    with pytest.raises(RunError, match="mlp get no adapters") as refused:
        load(["run=cartpole", "actor.lora.rank=4"])
    assert (refused.value.key, refused.value.remedy) == ("actor.lora.rank", "Set actor.lora.rank=0.")
