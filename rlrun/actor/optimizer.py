"""AdamW over the shards: a separate learning rate for the value head, schedule, clipping, skipped steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw

from rlrun.actor.process_group import Ranks
from rlrun.config.schema import ActorConfig, OptimizerKind
from rlrun.policies.offloading import local
from rlrun.system.errors import ExitStatus, RunError

VALUE_HEAD = "value_head."
BLOCK = 256  # numbers that share a scale; fixed by the library's kernels
SMALLEST = 4096  # numbers of a shard; smaller ones keep 32 bits, as in the library
MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # name -> whether it is signed


class ShardAdamW(torch.optim.AdamW):
    """torch's fused AdamW on this rank's shards, which gives its state to checkpoints sharded like the parameters.

    torch's own step takes the sharded tensors themselves, and plans every list of n of them in n squared steps: 10 s of
    the CPU for 850 tensors in the first step. AdamW works number by number, so the shards alone give the same result.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures: GuardedOptimizer has none
        """Step every parameter that has a gradient."""
        for group in self.param_groups:
            self._step([parameter for parameter in group["params"] if parameter.grad is not None], group)

    def _step(self, parameters: list[nn.Parameter], group: Mapping[str, Any]) -> None:
        if not parameters:
            return
        states = [self._state_of(parameter) for parameter in parameters]
        adamw(
            [part_of(parameter) for parameter in parameters],
            _gradients(parameters),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        shard = part_of(parameter)
        if not state:
            state["step"] = torch.zeros((), device=shard.device)
            state["exp_avg"] = torch.zeros_like(shard)
            state["exp_avg_sq"] = torch.zeros_like(shard)
        return state

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter: step, and exp_avg and exp_avg_sq with its shape and sharding."""
        return {name: _whole(name, held, parameter) for name, held in self.state.get(parameter, {}).items()}

    def blank_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return tensors into which the moments of a checkpoint can be read."""
        zeros = torch.zeros_like(parameter.detach())
        return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}

    def take_moments(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        """Use the moments of a checkpoint."""
        self.state[parameter] = {name: local(held) for name, held in moments.items()}
        self.state[parameter]["step"] = moments["step"].to(parameter.device)  # where the fused kernel reads it


def _whole(name: str, held: Tensor, parameter: nn.Parameter) -> Tensor:
    return held if name == "step" else _sharded_like(parameter, held)


def part_of(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, as `local`; the caller has switched gradients off.

    Asking torch for the mode of every tensor of a step takes longer than the answer.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return this rank's part of each gradient that is there."""
    return [part_of(parameter.grad) for parameter in parameters if parameter.grad is not None]


class GuardedOptimizer:
    """An optimizer that steps only if all gradients are finite.

    Build it before the first no-grad forward pass: after that the root's parameters are whole tensors, and an optimizer
    over those never updates the shards.
    """

    def __init__(
        self,
        module: nn.Module,
        config: ActorConfig,
        lr: float,
        value_lr: float,
        warmup_steps: int,
        decay: Callable[[], float] = lambda: 1.0,
    ):
        """warmup_steps: steps of the policy in which its rate rises; a value head begins at its own rate.
        decay: returns the present factor of the learning rates, which the warm-up multiplies.
        """
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in named]
        self._policy_parameters = [p for name, p in named if VALUE_HEAD not in name]
        policy_group: dict[str, Any] = {"params": self._policy_parameters, "lr": lr}
        of_value_head: dict[str, Any] = {"params": [p for name, p in named if VALUE_HEAD in name], "lr": value_lr}
        groups = [group for group in (policy_group, of_value_head) if group["params"]]
        first_beta, second_beta = config.betas
        self.inner = _optimizer_class(config)(
            groups,
            betas=(first_beta, second_beta),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.num_steps = 0  # of the policy; a resumed run needs only this and the states of `inner`
        self._lr = lr
        self._base_lrs = [group["lr"] for group in self.inner.param_groups]
        self._are_warmed_up = [group is policy_group for group in groups]
        self._warmup_steps = max(1, warmup_steps)
        self._decay = decay
        self._max_norm = config.clip_grad_norm

    @property
    def lr(self) -> float:
        """Learning rate of the next step for all parameters but the value head."""
        return self._lr * self._factor(is_warmed_up=True)

    def _factor(self, is_warmed_up: bool) -> float:
        return self._decay() * (min(1.0, (self.num_steps + 1) / self._warmup_steps) if is_warmed_up else 1.0)

    def step(self, ranks: Ranks) -> tuple[float, bool]:
        """Clip by global norm and step. Returns (norm before clipping, whether it stepped).

        If a gradient is not finite on any rank, no rank steps. Gradients are cleared in both cases.
        """
        norm = clip_to_norm(self.parameters, self._max_norm, ranks)
        is_finite = math.isfinite(norm)
        if is_finite:
            rates = zip(self.inner.param_groups, self._base_lrs, self._are_warmed_up, strict=True)
            for group, base_lr, is_warmed_up in rates:
                group["lr"] = base_lr * self._factor(is_warmed_up)
            self.inner.step()
            self.num_steps += any(parameter.grad is not None for parameter in self._policy_parameters)
        self.clear()
        return norm, is_finite

    def clear(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def keep_only_value_head(self) -> None:
        """Clear the gradients of all parameters but the value head: AdamW skips parameters without gradients."""
        for parameter in self._policy_parameters:
            parameter.grad = None


def _optimizer_class(config: ActorConfig) -> type[ShardAdamW]:
    """Return the optimizer class. Raises RunError if its library is missing."""
    if config.optimizer is OptimizerKind.adamw:
        return ShardAdamW

    require_library()
    return EightBitAdamW


@torch.no_grad()
def clip_to_norm(parameters: Sequence[nn.Parameter], max_norm: float, ranks: Ranks) -> float:
    """Scale gradients so that their norm over all ranks is at most max_norm. Returns the norm before, on all ranks.

    All ranks call it together: one all-reduce, whose sum is the same number everywhere.
    """
    gradients = _gradients(parameters)
    norm_here = get_total_norm(gradients).to(ranks.device)
    squares = ranks.sum(norm_here.double().square())  # of a float32 number, exact in float64
    norm = (squares / _num_copies(parameters, ranks.world_size)).sqrt().to(norm_here.dtype).cpu()
    scale = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_ has it
    if scale < 1:
        for gradient in gradients:
            gradient.mul_(float(scale))
    return float(norm)


def _num_copies(parameters: Sequence[nn.Parameter], world_size: int) -> int:
    """Return the number of ranks with the same part of a parameter. All parameters are sharded over one mesh."""
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            sizes = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
            return math.prod(size for size, placement in sizes if placement.is_replicate())
    return world_size


def require_library() -> None:
    """Raise RunError if bitsandbytes cannot be imported."""
    logging.getLogger("bitsandbytes.backends.cpu").setLevel(logging.ERROR)  # hides warnings about 4-bit layers
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise RunError(
            "The optimizer with 8-bit state needs bitsandbytes, which cannot be imported here.",
            key="actor.optimizer",
            value=OptimizerKind.adamw_8bit.name,
            cause=str(error),
            remedy="`pip install 'rlrun[bitsandbytes]'` on the nodes of the actor, or set actor.optimizer=adamw.",
            exit_status=ExitStatus.doctor,
        ) from error


class EightBitAdamW(ShardAdamW):
    """AdamW with 8-bit moments for shards of at least SMALLEST numbers. For smaller shards it equals torch's AdamW.

    The state of such a shard has, for each moment, codes (uint8, one per number) and scales (float32, one per block).

    Blocks depend on the shards, so codes cannot be read by another number of ranks. Therefore checkpoints hold moments
    in float32, as those of plain AdamW do, and both optimizers can resume each other's checkpoints.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures: GuardedOptimizer has none
        """Step every parameter that has a gradient; small shards use torch's AdamW."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            self._step([parameter for parameter in moved if not _is_large(parameter)], group)
            for parameter in filter(_is_large, moved):
                self._step_large(parameter, part_of(parameter.grad), group)

    def _step_large(self, parameter: nn.Parameter, gradient: Tensor, group: Mapping[str, Any]) -> None:
        from bitsandbytes.functional import optimizer_update_8bit_blockwise

        state = self._codes_of(parameter)
        state["step"] += 1
        optimizer_update_8bit_blockwise(
            "adam",  # with decoupled weight decay
            gradient,
            part_of(parameter),
            state["exp_avg_codes"],
            state["exp_avg_sq_codes"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            beta3=0.0,
            alpha=0.0,
            eps=group["eps"],
            step=int(state["step"]),
            lr=group["lr"],
            qmap1=_map(True, parameter.device),
            qmap2=_map(False, parameter.device),
            absmax1=state["exp_avg_scales"],
            absmax2=state["exp_avg_sq_scales"],
            weight_decay=group["weight_decay"],
        )

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the moments as float32 in host memory. The run continues with their 8-bit encoding, as if resumed."""
        state = self.state.get(parameter, {})
        if not _is_large(parameter) or not state:
            return super().moments(parameter)
        moments = {name: _sharded_like(parameter, self._decoded(parameter, name)).cpu() for name in MOMENTS}
        self._encode(parameter, moments)
        return {"step": state["step"], **moments}

    def blank_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return empty moments in host memory: the device has no room for float32 moments."""
        if not _is_large(parameter):
            return super().blank_moments(parameter)
        zeros = torch.zeros_like(local(parameter.detach()), dtype=torch.float32)
        return {"step": torch.zeros(()), **{name: _sharded_like(parameter, zeros.clone()).cpu() for name in MOMENTS}}

    def take_moments(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        """Encode and use the moments of a checkpoint."""
        if not _is_large(parameter):
            super().take_moments(parameter, moments)
            return
        self._codes_of(parameter)["step"] = moments["step"].cpu()
        self._encode(parameter, moments)

    def _codes_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        shard = local(parameter)
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in MOMENTS:
                state[f"{name}_codes"] = torch.zeros_like(shard, dtype=torch.uint8)
                state[f"{name}_scales"] = torch.zeros(-(-shard.numel() // BLOCK), device=shard.device)
        return state

    def _encode(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        from bitsandbytes.functional import quantize_blockwise

        state = self._codes_of(parameter)
        for name, has_sign in MOMENTS.items():
            numbers = local(moments[name]).to(parameter.device, torch.float32)
            codes, scales = quantize_blockwise(numbers, _map(has_sign, parameter.device), blocksize=BLOCK)
            state[f"{name}_codes"].copy_(codes.view_as(numbers))
            state[f"{name}_scales"].copy_(scales.absmax)

    def _decoded(self, parameter: nn.Parameter, name: str) -> Tensor:
        """Decode to float32, on the device and in the shape of this rank's shard."""
        from bitsandbytes.functional import dequantize_blockwise

        state = self.state[parameter]
        code = _map(MOMENTS[name], parameter.device)
        codes = state[f"{name}_codes"]
        scales = state[f"{name}_scales"]
        return dequantize_blockwise(codes, absmax=scales, code=code, blocksize=BLOCK)


def _is_large(parameter: nn.Parameter) -> bool:
    return local(parameter).numel() >= SMALLEST


@cache
def _map(has_sign: bool, device: torch.device) -> Tensor:
    """Return float32 [256]: the value of each code relative to its block's scale."""
    from bitsandbytes.functional import create_dynamic_map

    return create_dynamic_map(signed=has_sign).to(device)


def _sharded_like(parameter: nn.Parameter, numbers: Tensor) -> Tensor:
    """Return a tensor with the shape and sharding of `parameter`, of which this rank holds `numbers`."""
    if not isinstance(parameter, DTensor):
        return numbers
    mesh = parameter.device_mesh
    placements = parameter.placements
    shape = parameter.shape
    stride = parameter.stride()
    return DTensor.from_local(numbers, mesh, placements, run_check=False, shape=shape, stride=stride)
