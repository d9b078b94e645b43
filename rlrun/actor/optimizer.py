"""AdamW over the shards: a learning rate of its own for the value head, warm-up, clipping, skipping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from rlrun.actor.process_group import Ranks
from rlrun.config.schema import ActorConfig, OptimizerKind

VALUE_HEAD = "value_head."
FUSED_ON = ("cpu", "cuda")


class GuardedOptimizer:
    """Steps only with finite gradients. Build it before the first no-grad forward: afterwards the root's
    parameters are whole tensors, and an optimizer over those never updates the shards."""

    def __init__(self, module: nn.Module, config: ActorConfig, lr: float, value_lr: float, warmup_steps: int):
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for name, p in named if VALUE_HEAD not in name], "lr": lr},
            {"params": [p for name, p in named if VALUE_HEAD in name], "lr": value_lr},
        ]
        self.parameters = [p for _, p in named]
        self._policy_parameters = groups[0]["params"]
        self.inner = _optimizer_class(config)(
            [group for group in groups if group["params"]],
            betas=tuple(config.betas),
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        self.num_steps = 0  # taken; with the states of `inner` all that a resumed run needs
        self._base_lrs = [group["lr"] for group in self.inner.param_groups]
        self._warmup_steps = max(1, warmup_steps)
        self._max_norm = config.clip_grad_norm

    @property
    def lr(self) -> float:
        """Learning rate of the next step, of everything but the value head."""
        return self._base_lrs[0] * self._warmup()

    def _warmup(self) -> float:
        return min(1.0, (self.num_steps + 1) / self._warmup_steps)

    def step(self, ranks: Ranks) -> tuple[float, bool]:
        """Clip by global norm and step: (norm before clipping, stepped). With a non-finite gradient on any
        rank, no rank steps. Gradients are cleared either way."""
        norm = float(clip_to_norm(self.parameters, self._max_norm))
        is_finite = not ranks.any(not math.isfinite(norm))
        if is_finite:
            for group, base_lr in zip(self.inner.param_groups, self._base_lrs, strict=True):
                group["lr"] = base_lr * self._warmup()
            self.inner.advance()
            self.num_steps += 1
        self.clear()
        return norm, is_finite

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def keep_only_value_head(self) -> None:
        """Forget the gradients of everything but the value head: AdamW leaves what has no gradient alone."""
        for parameter in self._policy_parameters:
            parameter.grad = None


class ShardAdamW(torch.optim.AdamW):
    """AdamW that computes on the local part of every shard, without a dispatch of DTensors for each of some ten
    operations per parameter, in one fused pass over each: on CUDA for all parameters together. Its state, which
    checkpoints hold, is of DTensors as ever."""

    @torch.no_grad()
    def advance(self) -> None:
        """One step of every parameter that has a gradient; groups of equal settings take it together.

        As `step`, without the profiler's marks and hooks that torch puts around that.
        """
        together: list[tuple[dict[str, Any], list[nn.Parameter]]] = []
        for group in self.param_groups:
            settings = {name: value for name, value in group.items() if name != "params"}
            moving = next((found for known, found in together if known == settings), None)
            if moving is None:
                together.append((settings, moving := []))
            moving += [p for p in group["params"] if p.grad is not None]
        for settings, moving in together:
            self.step_group(moving, settings)

    def step(self, closure: None = None) -> None:
        """As torch's optimizers."""
        self.advance()

    def step_group(self, moving: Sequence[nn.Parameter], group: Mapping[str, Any]) -> None:
        """One step of parameters that share their settings."""
        own = []
        for p in moving:
            state = self._state_of(p)
            if local(p).numel():
                own.append((p, state))
            else:  # of a tensor with fewer rows than ranks: its step is written to checkpoints all the same
                state["step"] += 1
        beta1, beta2 = group["betas"]
        adamw(
            [local(p) for p, _ in own],
            [local(p.grad) for p, _ in own],
            [local(state["exp_avg"]) for _, state in own],
            [local(state["exp_avg_sq"]) for _, state in own],
            [],
            [state["step"] for _, state in own],
            fused=all(p.device.type in FUSED_ON for p, _ in own) or None,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What a checkpoint holds of a parameter: step, and exp_avg and exp_avg_sq shaped and sharded as it is."""
        return dict(self.state.get(parameter, {}))

    def blank_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Tensors into which the moments of a checkpoint can be read."""
        zeros = torch.zeros_like(parameter.detach())
        return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}

    def take_moments(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        """Go on from the moments of a checkpoint."""
        self.state[parameter] = {**moments, "step": moments["step"].to(_step_device(parameter))}

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, device=_step_device(parameter))
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _step_device(parameter: nn.Parameter) -> torch.device:
    """A fused pass reads the step where the parameter is."""
    return parameter.device if parameter.device.type in FUSED_ON else torch.device("cpu")


def _optimizer_class(config: ActorConfig) -> type[ShardAdamW]:
    """Raises RunError where its library is missing."""
    if config.optimizer is OptimizerKind.adamw:
        return ShardAdamW
    from rlrun.actor.eight_bit import EightBitAdamW, require_library  # bitsandbytes is optional

    require_library()
    return EightBitAdamW


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, which shares its memory; other tensors as they are."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def clip_to_norm(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their norm over all ranks is at most max_norm; returns the norm before.

    A collective of ranks that hold parts of the same parameters; as `torch.nn.utils.clip_grad_norm_`, on local parts.
    """
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    is_plain = bool(grads) and all(map(_is_whole_on_cpu, parameters))
    norm = _norm(grads) if is_plain else torch.nn.utils.get_total_norm(grads)
    mesh = next((p.device_mesh for p in parameters if isinstance(p, DTensor)), None)
    if mesh is not None and mesh["shard"].size() > 1:
        square = norm.to(mesh.device_type).square()
        dist.all_reduce(square, group=mesh["shard"].get_group())
        norm = square.sqrt().to(norm.device)
    factor = float(max_norm / (norm + 1e-6))
    if factor < 1.0:
        torch._foreach_mul_(grads, factor)
    return norm


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """Of tensors of one type and place; torch's own way looks for these first, which takes as long."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))


def _is_whole_on_cpu(parameter: nn.Parameter) -> bool:
    """Where torch does not choose its faster ways by itself."""
    return parameter.device.type == "cpu" and not isinstance(parameter, DTensor)
