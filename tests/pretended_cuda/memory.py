"""Bytes that one micro-batch of the published policy, 7.5 billion parameters, holds on a device that has no memory.

Fake tensors have shapes, types and storages of the right size, but no bytes; autograd keeps and frees them as on a GPU.
Each gradient is freed as soon as it is complete, as a rank of many does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from benchmarks.gpu.workload import Workload, workload
from rlrun.algorithms.losses import ppo_policy_loss, value_loss
from rlrun.placement.memory import activation_bytes
from rlrun.policies import distributions
from rlrun.policies.adapters import add_adapters
from rlrun.policies.compilation import prepare_blocks
from rlrun.policies.counting import count
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.policy import VlaPolicy
from tests.unit.actor.tensor_memory import TensorMemory

PROMPT_TOKENS = 30


@dataclass(frozen=True)
class Case:
    """Example: Case("libero", rows=8, lora=0, checkpointing=True)."""

    robot: str
    rows: int
    lora: int
    checkpointing: bool


def measured(case: Case) -> tuple[int, int]:
    """Return the bytes at the peak of a forward and backward pass, beside those of the weights: counted, estimated."""
    work = workload(case.robot, case.lora, case.rows, (1,))
    work.run.actor.activation_checkpointing = case.checkpointing
    F.scaled_dot_product_attention = _flash  # what a GPU chooses; a CPU build of torch chooses the plain product
    policy = _policy(work)
    with FakeTensorMode(allow_non_fake_inputs=True), TensorMemory() as memory:
        _give_memory(policy.module)
        if case.checkpointing:
            prepare_blocks(policy, checkpointed=1.0)
        for parameter in policy.module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_drop)
        weights = memory.peak_bytes = memory.current_bytes
        _loss(policy.module, case.rows).backward()
    return memory.peak_bytes - weights, activation_bytes(work.run, count(work.run))


def _policy(work: Workload) -> VlaPolicy:
    """Return a policy without memory, of which only the model is there."""
    with torch.device("meta"):
        policy = VlaPolicy(OpenVLAOFT(work.model).bfloat16().train(), processor=None)
    if work.run.actor.lora.rank:
        add_adapters(policy.module, work.run.actor.lora, policy.frozen_names())
    return policy


def _give_memory(model: OpenVLAOFT) -> None:
    for module in model.modules():
        for name, held in module.named_parameters(recurse=False):
            made = torch.empty(held.shape, dtype=torch.bfloat16, device="cuda")
            setattr(module, name, torch.nn.Parameter(made, held.requires_grad))
        for name, held in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(held.shape, dtype=held.dtype, device="cuda"))


def _loss(model: OpenVLAOFT, rows: int) -> Tensor:
    size, num_tokens = model.config.image_sizes, model.config.num_action_tokens
    ids = torch.zeros(rows, PROMPT_TOKENS, dtype=torch.long, device="cuda")
    pixels = torch.zeros(rows, 6 * model.config.num_images, *size, device="cuda").bfloat16()
    output = model(ids, None, pixels)
    of_token, of_row = torch.ones(rows, num_tokens, device="cuda"), torch.ones(rows, device="cuda")
    logprobs = distributions.token_logprobs(output.action_logits, of_token.byte(), 1.0)
    policy_loss, _ = ppo_policy_loss(logprobs, of_token, of_row, of_token, 0.2, 0.28, 3.0, "token-mean")
    critic_loss, _ = value_loss(output.value, of_row, of_row, of_row, 0.2, 10.0)
    return policy_loss + critic_loss


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **_: Any) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False, scale=scale)[0]
