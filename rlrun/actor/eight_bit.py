"""AdamW with moments in 8 bits, by bitsandbytes: a quarter of the state's memory, for a little noise in the steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlrun.actor.adamw import CheckpointedAdamW
from rlrun.config.schema import OptimizerKind
from rlrun.policies.offloading import local
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

BLOCK = 256  # numbers that share a scale; what the library's kernels are built for
SMALLEST = 4096  # numbers of a shard: below, as the library has it, 8 bits save nothing that counts
MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # name -> whether it has a sign


def require_library() -> None:
    """Raises RunError where bitsandbytes cannot be imported."""
    logging.getLogger("bitsandbytes.backends.cpu").setLevel(logging.ERROR)  # what it lacks for 4-bit layers, none here
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


class EightBitAdamW(CheckpointedAdamW):
    """The state of a shard of at least SMALLEST numbers is codes (uint8, one a number) and scales (float32, one a
    block) of both moments; smaller ones are as torch's AdamW has them.

    Blocks follow the shards, so codes mean nothing to other numbers of ranks: checkpoints hold moments as numbers, in
    float32 as those of plain AdamW, and either optimizer goes on from either's checkpoint.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures: GuardedOptimizer has none
        """One step of every parameter that has a gradient; torch's own for the small ones."""
        large = [(p, p.grad, group) for group in self.param_groups for p in group["params"] if _has_large_gradient(p)]
        for parameter, _, _ in large:
            parameter.grad = None
        super().step()
        for parameter, gradient, group in large:
            parameter.grad = gradient
            self._step_large(parameter, gradient, group)

    def _step_large(self, parameter: nn.Parameter, gradient: Tensor, group: Mapping[str, Any]) -> None:
        from bitsandbytes.functional import optimizer_update_8bit_blockwise

        state = self._codes_of(parameter)
        state["step"] += 1
        optimizer_update_8bit_blockwise(
            "adam",  # with decoupled weight decay
            local(gradient),
            local(parameter),
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
        """As numbers, in host memory. The run goes on from what they are when coded again, as a resumed one does."""
        state = self.state.get(parameter, {})
        if not _is_large(parameter) or not state:
            return super().moments(parameter)
        moments = {name: _in_host_memory(self._decoded(parameter, name), parameter) for name in MOMENTS}
        self._encode(parameter, moments)
        return {"step": state["step"], **moments}

    def blank_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """In host memory: on the device, moments in full would not fit."""
        if not _is_large(parameter):
            return super().blank_moments(parameter)
        zeros = torch.zeros_like(local(parameter.detach()), dtype=torch.float32)
        return {"step": torch.zeros(()), **{name: _in_host_memory(zeros.clone(), parameter) for name in MOMENTS}}

    def take_moments(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        """Go on from the moments of a checkpoint, coded."""
        if not _is_large(parameter):
            super().take_moments(parameter, moments)
            return
        self._codes_of(parameter)["step"] = moments["step"].cpu()
        self._encode(parameter, moments)

    def _codes_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state, shard = self.state[parameter], local(parameter.detach())
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
        """float32, on the device and in the shape of this rank's shard."""
        from bitsandbytes.functional import dequantize_blockwise

        state, code = self.state[parameter], _map(MOMENTS[name], parameter.device)
        codes, scales = state[f"{name}_codes"], state[f"{name}_scales"]
        return dequantize_blockwise(codes, absmax=scales, code=code, blocksize=BLOCK)


def _is_large(parameter: nn.Parameter) -> bool:
    return local(parameter).numel() >= SMALLEST


def _has_large_gradient(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and _is_large(parameter)


@cache
def _map(has_sign: bool, device: torch.device) -> Tensor:
    """float32 [256]: the share of a block's scale that each code stands for."""
    from bitsandbytes.functional import create_dynamic_map

    return create_dynamic_map(signed=has_sign).to(device)


def _in_host_memory(numbers: Tensor, parameter: nn.Parameter) -> Tensor:
    """Of this rank's part of a tensor that is sharded as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return numbers.cpu()
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(numbers, mesh, placements, run_check=False, shape=shape, stride=stride).cpu()
