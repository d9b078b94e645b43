"""Counts a policy's parameters, operations, bytes and kernels from its own class: `python -m rlrun.policies.counting`.

The policy is made on torch's meta device, where tensors have sizes and no memory, and acts and learns there once. A
process of its own does it, since torch takes seconds to import: `rlrun.placement.policy_counts` starts it with a
pickled RunConfig on standard input, and reads the pickled counts from standard output.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlrun.algorithms.algorithm import OffPolicyAlgorithm
from rlrun.algorithms.losses import ppo_policy_loss, value_loss
from rlrun.config.registry import ALGORITHMS, POLICIES
from rlrun.config.schema import AttentionKernel, Precision, RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.spaces import Spaces
from rlrun.policies.adapters import add_adapters, is_adapter_name, plain_name, unchanging_names
from rlrun.policies.counts import PassCount, PolicyCounts, StackCount
from rlrun.policies.device_work import META, DeviceWork, FusedAttention
from rlrun.policies.opening import open_unfilled
from rlrun.policies.policy import Policy, torch_dtype
from rlrun.policies.spec import CONFIG_FILE, DemonstratedTask, PolicySpec, policy_spec
from rlrun.system.errors import RunError

# Of the two passes whose difference is the work of a row. One row has kernels of its own; with few rows other tensors
# are held at the peak than with many.
ROWS = (2, 16)
# A usual instruction. The tokenizers of large language models make some 30 tokens of its prompt.
INSTRUCTION = "put the black bowl on the plate and close the drawer of the cabinet"
SHORT_INSTRUCTION = "go"  # of a policy that takes no more


def count(config: RunConfig, instruction: str = INSTRUCTION) -> PolicyCounts:
    """Count the policy of a run. Raises RunError for a folder that cannot be opened, and whatever the policy raises.

    instruction: of every row; a shorter one replaces it if the policy takes none so long.
    """
    return count_policy(on_meta(config), config, instruction)


def count_policy(policy: Policy, config: RunConfig, instruction: str = INSTRUCTION) -> PolicyCounts:
    """Count a policy that `on_meta` made. Its modules cannot be used afterwards."""
    module = policy.module
    unread = policy.unread_names()
    parameters = dict(module.named_parameters())
    passes = Passes(policy, config, instruction)
    acts = [passes.act(rows) for rows in ROWS]
    _prepare_training(policy, config)
    trained = _num_parameters(module, only_trained=True)
    updates = [passes.learn(rows) for rows in ROWS]
    stacks = [stack for stack in policy.stacks() if stack]
    _checkpoint([block for stack in stacks for block in stack])
    recomputing = [passes.learn(rows) for rows in ROWS]
    tokens = passes.tokens[ROWS[0]]
    return PolicyCounts(
        num_parameters=sum(parameter.numel() for parameter in parameters.values()),
        num_trained=trained,
        num_frozen=_num_parameters(module) - trained,
        num_unread=sum(parameters[name].numel() for name in unread & parameters.keys()),
        num_sent=_num_sent(policy, config),
        stacks=tuple(
            StackCount(
                tuple(map(_num_parameters, stack)),
                tuple(_num_parameters(block, only_trained=True) for block in stack),
                *passes.sizes[stack[-1]],
            )
            for stack in stacks
        ),
        choice_bytes=tokens[0].numel() * tokens.element_size(),
        act=PassCount.from_two(acts, ROWS),
        update=PassCount.from_two(updates, ROWS),
        recompute=PassCount.from_two(recomputing, ROWS),
    )


def on_meta(config: RunConfig) -> Policy:
    """Return the run's policy on the meta device, without adapters.

    A folder that is not on this machine counts as the published policy of its kind, or as a new one.
    """
    spec = policy_spec(config)
    path = config.policy.path
    if path is not None and (Path(path) / CONFIG_FILE).is_file():
        policy, _ = open_unfilled(path, config)
    else:
        with torch.device(META):
            policy = made_without_folder(spec, config)
    policy.module.to(META)
    policy.device = META
    asked = config.policy.attention
    kernel = None if asked is AttentionKernel.flash else asked  # flash-attn has no meta kernel; torch's own is alike
    policy.use_attention(kernel, Precision.bf16)
    return policy


def made_without_folder(spec: PolicySpec, config: RunConfig) -> Policy:
    """Return a policy that no folder describes, with new weights on the default device."""
    spaces = simulator_spec(config.env).world.planned_spaces(config.env)
    num_actions = spaces.num_actions
    num_proprio = spaces.num_proprio
    if config.policy.path is not None and spec.published is not None:
        return POLICIES.part(spec, "published")(config, spaces)
    if spec.from_scratch is not None:
        limits = (-1.0,) * num_actions, (1.0,) * num_actions
        shown = Spaces(num_actions, None, *limits, num_proprio, spaces.num_images)
        return POLICIES.part(spec, "from_scratch")(config, shown)
    cameras = spaces.cameras or tuple(f"camera_{i}" for i in range(spaces.num_images))
    statistics = {"action": _statistics(num_actions), "proprio": _statistics(num_proprio)}
    task = DemonstratedTask(num_actions, num_proprio, statistics, (INSTRUCTION,), cameras)
    return POLICIES.part(spec, "from_demonstrations")(config, task)


def _statistics(size: int) -> dict[str, list]:
    low = [-1.0] * size
    high = [1.0] * size
    return {
        "q01": low,
        "min": low,
        "q99": high,
        "max": high,
        "mean": [0.0] * size,
        "std": [1.0] * size,
        "mask": [True] * size,
    }


class Passes:
    """Lets a policy act and learn, once each."""

    def __init__(self, policy: Policy, config: RunConfig, instruction: str):
        self._policy = policy
        self._config = config
        self._instruction = instruction
        self._casts: torch.dtype | None = None  # in which FSDP gives tensors to the policy
        self.tokens: dict[int, Tensor] = {}  # by rows
        self.sizes: dict[nn.Module, tuple[int, int]] = {}  # block -> tokens of a row and width of its last output
        for stack in policy.stacks():
            for block in stack[-1:]:
                block.register_forward_hook(self._note)
        for module in (policy.module, *(block for stack in policy.stacks() for block in stack)):
            module.register_forward_pre_hook(self._cast, with_kwargs=True)

    def act(self, rows: int) -> PassCount:
        """Count the answer to `rows` observations, as `rollout.hf` computes it."""
        module = self._policy.module.eval().to(torch_dtype(self._config.rollout.precision))
        with torch.no_grad(), FusedAttention(), DeviceWork(_parameters_and_buffers(module)) as work:
            distribution, _ = self.observed(partial(self._policy, temperature=1.0), rows)
            self.tokens[rows] = tokens = distribution.sample(np.arange(rows, dtype=np.uint64))
            distribution.logprobs(tokens)
        return work.count(keeps=False)

    def learn(self, rows: int) -> PassCount:
        """Count the forward and backward pass of a micro-batch. Gradients do not stay, as on a rank of many."""
        module = self._policy.module.train()
        precision = torch_dtype(self._config.actor.param_precision)
        for parameter in module.parameters():
            parameter.data = parameter.data.to(precision)
        self._casts = precision
        with FusedAttention(), DeviceWork(_parameters_and_buffers(module)) as work:
            _loss(self._policy, self._config, partial(self.observed, rows=rows), self.tokens[rows]).backward()
        return work.count(keeps=True)

    def observed(self, call: Callable[..., Any], rows: int) -> Any:
        """Return `call` of images, instructions and proprioception of `rows` rows."""
        spaces = simulator_spec(self._config.env).world.planned_spaces(self._config.env)
        side = self._config.env.image_size
        images = np.zeros((rows, spaces.num_images, side, side, 3), np.uint8)
        proprio = np.zeros((rows, self._policy.num_proprio or spaces.num_proprio), np.float32)
        try:
            return call(images, [self._instruction] * rows, proprio)
        except RunError:
            if self._instruction == SHORT_INSTRUCTION:
                raise
            self._instruction = SHORT_INSTRUCTION
            return call(images, [self._instruction] * rows, proprio)

    def _note(self, block: nn.Module, given: Any, made: Any) -> None:
        first = made[0] if isinstance(made, tuple) else made
        self.sizes[block] = (first.shape[-2] if first.ndim > 2 else 0, first.shape[-1])

    def _cast(self, module: nn.Module, arguments: tuple, named: dict) -> tuple[tuple, dict]:
        """Cast as FSDP's mixed precision does."""
        return _in_precision(arguments, self._casts), _in_precision(named, self._casts)


def _in_precision(value: Any, precision: torch.dtype | None) -> Any:
    if precision is None:
        return value
    if isinstance(value, Tensor):
        return value.to(precision) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(_in_precision(item, precision) for item in value)
    if type(value) is dict:
        return {name: _in_precision(item, precision) for name, item in value.items()}
    return value


def _parameters_and_buffers(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _loss(policy: Any, config: RunConfig, observed: Callable[..., Any], tokens: Tensor) -> Tensor:
    """Return the loss of a micro-batch: PPO's, since algorithms differ in a few small kernels only."""
    kind = ALGORITHMS.part(ALGORITHMS.get(config.algorithm.name), "algorithm")
    if issubclass(kind, OffPolicyAlgorithm) and hasattr(policy, "steer"):  # only a head runs: rlrun.algorithms.dsrl
        features, noise = policy.steered(tokens)
        chosen, density = policy.steer(features).reparameterized(torch.empty_like(noise))
        return chosen.sum() + density.sum()
    distribution, values = observed(lambda *shown: policy.evaluate(*shown, 1.0, tokens))
    logprobs = distribution.logprobs(tokens)
    mask = torch.ones_like(logprobs)
    of_row = torch.ones(len(logprobs), device=META)
    loss, _ = ppo_policy_loss(logprobs, mask, of_row, mask, 0.2, 0.28, 3.0, "token-mean")
    return loss if values is None else loss + value_loss(values, of_row, of_row, of_row, 0.2, 10.0)[0]


def _prepare_training(policy: Policy, config: RunConfig) -> None:
    """Choose what trains, as an actor does."""
    module = policy.module
    lora = config.actor.lora
    if lora.rank:
        add_adapters(module, lora, policy.frozen_names())
    has_critic = ALGORITHMS.get(config.algorithm.name).has_critic
    for name, parameter in module.named_parameters():
        if "value_head." in name and not has_critic:
            parameter.requires_grad_(False)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_drop)


def _checkpoint(blocks: list[nn.Module]) -> None:
    """Keep a block's input only, as `rlrun.policies.compilation` does.

    A mode of functions does not see what runs inside a backward pass, so a recomputed block gets its own.
    """
    for block in blocks:
        block.forward = partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), FusedAttention()),
        )


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def _num_parameters(module: nn.Module, only_trained: bool = False) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad or not only_trained)


def _num_sent(policy: Policy, config: RunConfig) -> int:
    """Return the parameters that change at a rollout worker, merged, as `actor.sharding` chooses them."""
    lora = config.actor.lora
    parameters = dict(policy.module.named_parameters())
    adapters = {name for name in parameters if is_adapter_name(name)}
    sizes = {plain_name(name): parameter.numel() for name, parameter in parameters.items() if name not in adapters}
    adapted = {f"{name.partition('.lora_')[0]}.weight" for name in adapters}
    unsent = unchanging_names(sizes, adapted, policy.frozen_names(), lora)
    return sum(number for name, number in sizes.items() if name not in unsent)


def main() -> None:
    """Read the configuration, and write the counts, or the error that a user understands."""
    # a policy may print
    answer = sys.stdout
    sys.stdout = sys.stderr
    config = pickle.load(sys.stdin.buffer)
    try:
        counts: PolicyCounts | RunError = count(config)
    except RunError as error:
        counts = error
    answer.buffer.write(pickle.dumps(counts))
    answer.buffer.flush()


if __name__ == "__main__":
    main()
