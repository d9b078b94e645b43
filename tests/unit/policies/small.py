"""Small policies and frames for the tests of policies and rollout."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlrun.config.schema import EnvConfig, PolicyConfig, RunConfig
from rlrun.edges.frames import Frames
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.policies.opening import open_policy
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.policy import VlaPolicy, new_policy
from rlrun.policies.openvla_oft.processor import Processor
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.spec import DemonstratedTask

A, P, SIZE = 3, 5, 32
INSTRUCTIONS = ("Turn on the radio", "Pick up the trash from the table and throw it away")


def statistics(num_actions: int = A, num_proprio: int = P) -> dict:
    """Bounds that differ per dimension; the last action is not normalised."""
    action = {
        "q01": list(np.linspace(-2.0, -0.5, num_actions)),
        "q99": list(np.linspace(0.5, 4.0, num_actions)),
        "min": list(np.linspace(-3.0, -0.6, num_actions)),
        "max": list(np.linspace(0.6, 5.0, num_actions)),
        "mask": [True] * (num_actions - 1) + [False],
    }
    return {"action": action, "proprio": {"q01": [-1.0] * num_proprio, "q99": [1.0] * num_proprio}}


def small_config(**changes: object) -> PolicyConfig:
    """Two chunks of tiny layers."""
    shared = {"num_action_chunks": 2, "value_hidden_sizes": [16]}
    own = {
        "patch_size": 16,
        "vision_hidden_size": 16,
        "vision_num_layers": 3,
        "vision_num_heads": 2,
        "llm_hidden_size": 32,
        "llm_intermediate_size": 48,
        "llm_num_heads": 2,
    }
    is_own = {field.name for field in fields(OpenVLAOFTSettings)}
    own |= {name: value for name, value in changes.items() if name in is_own}
    shared |= {name: value for name, value in changes.items() if name not in is_own}
    return PolicyConfig(**shared, sections={"openvla_oft": OpenVLAOFTSettings(**own)})


def small_policy(num_images: int = 1, seed: int = 0, **changes: object) -> tuple[OpenVLAOFT, Processor]:
    """A policy of `small_config` with A actions and P proprioception, which knows INSTRUCTIONS."""
    robot = EmbeddedConfig(cameras=[f"camera_{i}" for i in range(num_images)])
    env = EnvConfig(image_size=SIZE, sections={"embedded": robot})
    return new_policy(
        small_config(**changes), env, DemonstratedTask(A, P, statistics(), INSTRUCTIONS, tuple(robot.cameras)), seed
    )


def opened_vla(
    folder: Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None = None
) -> tuple[OpenVLAOFT, Processor]:
    """The model of a folder, and its processor."""
    policy = open_policy(folder, dtype, device, run)
    assert isinstance(policy, VlaPolicy)
    return policy.module, policy.processor


def some_frames(num_rows: int, num_images: int = 1, seed: int = 0, size: int = SIZE) -> Frames:
    """Random pixels and proprioception; instructions alternate."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (num_rows, num_images, size, size, 3), dtype=np.uint8)
    proprio = generator.standard_normal((num_rows, P)).astype(np.float32)
    return Frames(images, proprio, tuple(INSTRUCTIONS[i % 2] for i in range(num_rows)))


def answered(model: OpenVLAOFT, *inputs: Tensor | None) -> dict[str, Tensor]:
    """The output, and the gradient of its sum by each parameter that has one."""
    model.zero_grad()
    output = model(*inputs)
    (output.action_logits.square().sum() + output.value.sum()).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"action logits": output.action_logits, "value": output.value, **gradients}
