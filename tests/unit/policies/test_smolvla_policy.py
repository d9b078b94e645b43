"""SmolVLA behind the policy interface: what trains, what a folder keeps, what a row depends on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.policies.flow.tokens import FlowChoice
from rlrun.policies.opening import open_policy
from rlrun.policies.smolvla.new_policy import new_policy
from rlrun.policies.smolvla.policy import SmolVLAPolicy
from rlrun.policies.spec import DemonstratedTask
from rlrun.system.errors import RunError

A, P, ROWS = 3, 5, 4
SENTENCES = ("turn on the radio", "pick up the small red can")


def config(*overrides: str) -> RunConfig:
    return load(["policy=smolvla", "env.image_size=32", "policy.num_action_chunks=2", *overrides])


def task() -> DemonstratedTask:
    def moments(size: int) -> dict:
        return {"mean": list(np.linspace(-1, 1, size)), "std": list(np.linspace(0.5, 2, size))}

    return DemonstratedTask(A, P, {"action": moments(A), "proprio": moments(P)}, SENTENCES)


@pytest.fixture(scope="module")
def policy() -> SmolVLAPolicy:
    return new_policy(config(), task())


def frames() -> tuple[np.ndarray, list[str], np.ndarray]:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (ROWS, 1, 32, 32, 3), dtype=np.uint8)
    return images, [SENTENCES[row % 2] for row in range(ROWS)], draw.standard_normal((ROWS, P)).astype(np.float32)


def keys() -> np.ndarray:
    return np.arange(ROWS, dtype=np.uint64) + 11


def chosen(policy: SmolVLAPolicy) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        distribution, _ = policy(*frames(), 1.0)
        tokens = distribution.sample(keys())
        return tokens.clone(), distribution.logprobs(tokens).clone()


def test_rows_with_instructions_of_other_lengths_do_not_affect_each_other(policy: SmolVLAPolicy) -> None:
    images, sentences, proprio = frames()
    with torch.inference_mode():
        whole = policy(images, sentences, proprio, 1.0)[0].sample(keys())
        alone = policy(images[:1], sentences[:1], proprio[:1], 1.0)[0].sample(keys()[:1])
    assert torch.linalg.norm(whole[:1] - alone) < 1e-5 * torch.linalg.norm(alone)


def test_the_ratio_is_one_before_the_first_update(policy: SmolVLAPolicy) -> None:
    tokens, stored = chosen(policy)
    again = policy.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert again.shape == (ROWS, 2 * A)
    assert torch.linalg.norm(again - stored) < 1e-5 * torch.linalg.norm(stored)


def test_actions_are_the_last_numbers_in_simulator_units(policy: SmolVLAPolicy) -> None:
    tokens, _ = chosen(policy)
    action = FlowChoice.of(tokens, policy.shape.num_steps, policy.shape.num_dims).action.view(ROWS, 2, A).numpy()
    wanted = action * np.linspace(0.5, 2, A) + np.linspace(-1, 1, A)
    assert np.linalg.norm(policy.decode_actions(tokens.numpy()) - wanted) < 1e-5 * np.linalg.norm(wanted)


def test_training_the_expert_only_leaves_the_vlm_and_its_gradients_alone(tmp_path: Path, policy: SmolVLAPolicy) -> None:
    policy.save(tmp_path / "policy")
    opened = open_policy(tmp_path / "policy", torch.float32, "cpu", config())
    tokens, _ = chosen(opened)
    distribution, values = opened.evaluate(*frames(), 1.0, tokens)
    (distribution.logprobs(tokens).sum() + values.sum()).backward()
    reached = {name for name, parameter in opened.module.named_parameters() if parameter.grad is not None}
    frozen = opened.frozen_names()
    assert reached.isdisjoint(frozen)
    assert reached == {name for name, _ in opened.module.named_parameters()} - frozen
    trained = ("value_head.", "lm_expert.", "action_in_proj.", "action_out_proj.", "action_time_mlp_")
    assert all(any(part in name for part in trained) for name in reached)
    assert any("vision_model" in name for name in frozen)


def test_a_folder_keeps_the_policy_and_takes_the_flow_steps_of_the_run(tmp_path: Path, policy: SmolVLAPolicy) -> None:
    policy.save(tmp_path)
    tokens, stored = chosen(policy)
    opened = open_policy(tmp_path, torch.float32, "cpu")
    again = opened.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert torch.linalg.norm(again - stored) < 1e-5 * torch.linalg.norm(stored)
    other = open_policy(tmp_path, torch.float32, "cpu", config("policy.smolvla.num_flow_steps=7"))
    assert other.sde.num_steps == 7


def test_a_policy_of_bfloat16_judges_in_float32(policy: SmolVLAPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    opened = open_policy(tmp_path, torch.bfloat16, "cpu")
    tokens, stored = chosen(opened)
    again = opened.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert stored.dtype == torch.float32
    assert torch.linalg.norm(again - stored) < 1e-4 * torch.linalg.norm(stored)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("policy.smolvla.llm_num_heads=5", "policy.smolvla.llm_hidden_size"),
        ("policy.smolvla.patch_size=24", "env.image_size"),
        ("rollout=sglang", "rollout.backend"),
    ],
)
def test_what_cannot_be_is_refused(override: str, key: str) -> None:
    with pytest.raises(RunError) as refused:
        config(override)
    assert key in str(refused.value)


def test_imitation_learns_the_demonstrated_action(policy: SmolVLAPolicy) -> None:
    """One demonstration, over and over: the flow from zero ends at it."""
    learned = new_policy(config(), task())
    images, sentences, proprio = frames()
    actions = np.random.default_rng(1).standard_normal((ROWS, 2, A)).astype(np.float32)
    valid, settings = np.ones((ROWS, 2), bool), config().sft
    optimizer = torch.optim.AdamW(learned.module.parameters(), lr=1e-3)
    gaps = []
    for _ in range(60):
        with torch.inference_mode():
            shown = learned.decode_actions(learned(images, sentences, proprio, 1.0)[0].most_likely().numpy())
        gaps.append(float(np.linalg.norm(shown - actions)))
        loss, _ = learned.imitation_loss(images, sentences, proprio, actions, valid, settings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert np.mean(gaps[-5:]) < 0.5 * gaps[0]
