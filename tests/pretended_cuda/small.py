"""A small policy on the device: its learner, its rollout backend, and what they are given."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch.distributed as dist

from rlrun.actor import process_group
from rlrun.actor.learner import Learner
from rlrun.config.schema import Precision, RunConfig
from rlrun.edges.buckets import lay_out, pack
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.trajectories import Trajectory
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.policies.openvla_oft.policy import VlaPolicy, new_policy
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.spec import DemonstratedTask
from rlrun.rollout.hf import HFBackend
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.tiny_run import A, B, P, T, tiny_config, trajectory

SIDE = 32
SENTENCES = ("push", "pull it")  # of unequal lengths, so that one of them is padded


def config(micro_batch_size: int = 8) -> RunConfig:
    """Everything that computes in bfloat16, one optimizer step."""
    run = tiny_config(micro_batch_size=micro_batch_size, num_workers=1, param_precision=Precision.bf16)
    run.rollout.precision, run.algorithm.update_epochs = Precision.bf16, 1
    run.algorithm.kl_coef = run.algorithm.entropy_coef = 0.01
    run.env.image_size = SIDE
    own = OpenVLAOFTSettings(vision_hidden_size=16, llm_hidden_size=16, llm_intermediate_size=32, center_crop=True)
    own.vision_num_heads = own.llm_num_heads = 2
    run.policy.sections = {"openvla_oft": own}
    return run


def policy(run: RunConfig, device: str) -> VlaPolicy:
    """Return a new policy, the same one every time."""
    ends = [
        {"q01": [-1.0] * n, "q99": [1.0] * n, "min": [-1.0] * n, "max": [1.0] * n, "mask": [True] * n} for n in (A, P)
    ]
    task = DemonstratedTask(
        A, P, {"action": ends[0], "proprio": ends[1]}, SENTENCES, tuple(run.env.section(EmbeddedConfig).cameras)
    )
    model, processor = new_policy(run.policy, run.env, task, seed=3)
    return VlaPolicy(model.to(device), processor)


def learner(run: RunConfig, device: str = "cuda") -> Learner:
    """Return the only rank."""
    if not dist.is_initialized():
        process_group.join(0, 1, "127.0.0.1", 0, "gloo", 30.0)
    return Learner(run, policy(run, device), 0, 1, device, Telemetry("actor/0"))


def backend(run: RunConfig, device: str = "cuda") -> HFBackend:
    """Return a rollout backend that has no weights yet."""
    return HFBackend(policy(run, device))


def send(source: Learner, target: HFBackend) -> None:
    """Give the learner's weights to the backend."""
    layout = lay_out(source.weight_layout(), 1 << 20)
    for bucket in pack(source.named_weights(), layout, policy_version=0):
        target.apply(bucket)


def experience() -> Trajectory:
    """32 chunk steps of both sentences."""
    images = np.random.default_rng(0).integers(0, 256, (T, B, 1, SIDE, SIDE, 3), dtype=np.uint8)
    return dataclasses.replace(trajectory(), images=images)


def observation(*sentences: str) -> Observation:
    """One row per sentence."""
    draw = np.random.default_rng(1)
    rows = len(sentences)
    images = draw.integers(0, 256, (rows, 1, SIDE, SIDE, 3), dtype=np.uint8)
    frames = Frames(images, draw.standard_normal((rows, P)).astype(np.float32), sentences)
    return Observation(0, frames, np.arange(rows, dtype=np.uint64), 1.0, None)
