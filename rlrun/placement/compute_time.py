"""Estimate of the compute time of a training step from floating-point operations and peak speeds. Pure.

It assumes that accelerators reach a fixed share of their peak (MFU) where the CPU can launch kernels fast enough, and
counts neither simulators nor waiting. `python -m benchmarks.gpu_7b` measures both on a real device; docs/gpu.md has
what it found.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.schema import RunConfig
from rlrun.placement.plan import Plan
from rlrun.policies.size import PolicySize, Stack

# published dense bf16 TFLOP/s by a part of the model's name; the first match counts
PEAK_TFLOPS = {
    "H200": 989, "H100": 989, "H800": 989, "A100": 312, "A800": 312,
    "L40S": 362, "L40": 181, "A6000": 155, "4090": 165, "3090": 71, "A40": 150, "A10": 125,
}  # fmt: skip
REACHED = 0.4  # assumed share of the peak
# Of the CPU, for all kernels of one block in a micro-batch, however few rows it has: docs/gpu.md has 0.5 to 0.6 s for
# two rows and 83 blocks.
LAUNCH_S = 0.006


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one training step. Example: StepTimes("A100", "A100", 92.0, 251.0)."""

    act_model: str
    update_model: str
    act_s: float  # all rollout workers in parallel, each with its share of the rows
    update_s: float


def forward_flops(size: PolicySize) -> int:
    """Return the operations of one row's forward pass. Counts matrix products; all else is about 1 %."""
    if not size.stacks:
        return 2 * size.num_parameters
    return sum(map(_stack_flops, size.stacks)) + _flops_between(size)


def act_flops(size: PolicySize) -> int:
    """Return the operations of one row's answer, in which some stacks compute more than once."""
    again = sum((stack.passes_to_act - 1) * _stack_flops(stack) for stack in size.stacks)
    return forward_flops(size) + round(again)


def update_flops(config: RunConfig, size: PolicySize) -> int:
    """Return the operations of one row's forward and backward pass; checkpointing repeats the forward pass."""
    passes = 2 if config.actor.lora.rank else 3  # frozen weights need no gradient
    passes += int(config.actor.activation_checkpointing)
    if size.trains_heads_only:
        return passes * 2 * size.new_parameters
    untrained = sum(_stack_flops(stack) for stack in size.stacks if not stack.is_trained)
    return passes * (forward_flops(size) - untrained) + untrained


def _flops_between(size: PolicySize) -> int:
    """Return the operations of projector and logits."""
    llm, vision = size.language_model, size.towers
    features, patches = sum(stack.width for stack in vision), min((stack.num_tokens for stack in vision), default=0)
    projector = 2 * patches * (4 * features**2 + 4 * features * llm.width + llm.width**2)
    logits = 2 * size.num_action_tokens * size.num_bins * llm.width
    return projector + logits


def step_times(config: RunConfig, plan: Plan, size: PolicySize) -> StepTimes | None:
    """Return the times of a training step, or None if an accelerator is missing or its peak is unknown."""
    rollouts, actors = plan.of("rollout"), plan.of("actor")
    models = [sorted({slot.accelerator_model for slot in slots}) for slots in (rollouts, actors)]
    peaks = [min((peak_flops(model) for model in names), default=0.0) for names in models]
    if not all(peaks):
        return None
    env, algorithm = config.env, config.algorithm
    rows = env.num_envs * algorithm.horizon * algorithm.rollout_epochs
    act = rows * act_flops(size) / len(rollouts) / (REACHED * peaks[0])
    learned = rows * algorithm.update_epochs / len(actors)
    computing = learned * update_flops(config, size) / (REACHED * peaks[1])
    num_blocks = sum(stack.num_layers for stack in size.stacks)
    update = max(computing, learned / config.actor.micro_batch_size * num_blocks * LAUNCH_S)
    return StepTimes(", ".join(models[0]), ", ".join(models[1]), act, update)


def _stack_flops(stack: Stack) -> int:
    attention = 4 * stack.num_tokens * (stack.num_tokens // stack.num_sequences) * stack.width
    return stack.num_layers * (2 * stack.matrix_parameters * stack.num_tokens + attention)


def peak_flops(model: str) -> float:
    """Return the peak operations per second of an accelerator by its name; 0 if the table lacks it."""
    return next((1e12 * peak for name, peak in PEAK_TFLOPS.items() if name in model), 0.0)
