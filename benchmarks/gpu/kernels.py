"""Rows of kernels: attention forward and backward, Inductor, sampling; each against the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Row, Seen, row
from benchmarks.gpu.workload import INSTRUCTIONS, filled_policy, observation_of, workload
from rlrun.config.schema import AttentionKernel, CompileBackend
from rlrun.policies import distributions
from rlrun.policies.openvla_oft import attention
from tests.numerics import norm_error

NUM_ROWS = 8
CPU = torch.device("cpu")
LENGTHS = {"alike": INSTRUCTIONS[:1], "of different lengths": INSTRUCTIONS}
ROUNDING = "error by the norm at most twice that of bf16 on the CPU"
Outputs = dict[str, Tensor]


@row("float32, forward and backward", "within 2e-3 of float32 on the CPU (TF32 in the convolution of patches)")
def float32(machine: Machine) -> Seen:
    """The whole small policy in float32: a wrong kernel or device shows here without the noise of bf16."""
    exact, _ = _on_cpu(INSTRUCTIONS[:1])
    errors = _errors(answered(AttentionKernel.sdpa, machine.device, torch.float32), exact)
    return Seen(_shown(errors), max(errors.values()) <= 2e-3)


def attention_row(kernel: AttentionKernel, lengths: str) -> Row:
    """Return the row of a kernel. Rows of different lengths are packed."""
    instructions = LENGTHS[lengths]

    def measure(machine: Machine) -> Seen:
        fault = attention.flash_fault() if kernel is AttentionKernel.flash else None
        if fault is not None:
            raise LeftOut(fault)
        exact, usual = _on_cpu(instructions)
        errors = _errors(answered(kernel, machine.device, torch.bfloat16, instructions), exact)
        is_right = all(errors[name] <= 2 * usual[name] for name in errors)
        return Seen(f"{_shown(errors)}; CPU: {_shown(usual)}", is_right)

    return row(f"attention by {kernel.name}, bf16, rows {lengths}", ROUNDING)(measure)


@row("torch.compile with Inductor", f"{ROUNDING}; the second pass needs no compiler", needs=("triton",))
def inductor(machine: Machine) -> Seen:
    """Blocks compiled for the card, against blocks that are not."""
    exact, usual = _on_cpu(INSTRUCTIONS[:1])
    passes = _passes(AttentionKernel.sdpa, machine.device, torch.bfloat16, INSTRUCTIONS[:1], CompileBackend.inductor)
    seconds = [_seconds(passes) for _ in range(2)]
    errors = _errors(passes(), exact)
    is_right = all(errors[name] <= 2 * usual[name] for name in errors) and seconds[1] < 0.5 * seconds[0]
    return Seen(f"{_shown(errors)}; passes of {seconds[0]:.1f} and {seconds[1]:.2f} s", is_right)


@row("sampling of equal logits", "at most 1 of 1000 tokens differs, by one bin; log-probabilities within 1e-6")
def sampled(machine: Machine) -> Seen:
    """Tokens, log-probabilities and entropy of the same logits and keys on both."""
    logits = 3 * torch.randn(256, 56, 256, generator=torch.Generator().manual_seed(0))
    drawn = distributions.uniforms(np.arange(256, dtype=np.uint64), 56)
    there = logits.to(machine.device)
    ours, reference = (distributions.sample_tokens(x, 1.6, drawn) for x in (there, logits))
    apart = (ours.cpu() - reference).abs()
    chosen = reference.to(machine.device)
    pairs = [
        (
            distributions.token_logprobs(there, chosen, 1.6),
            distributions.token_logprobs(logits, reference, 1.6),
        ),
        (distributions.entropy(there, 1.6), distributions.entropy(logits, 1.6)),
    ]
    error = max(norm_error(a.cpu(), b) for a, b in pairs)
    share = float((apart > 0).double().mean())
    is_right = share <= 1e-3 and int(apart.max()) <= 1 and error <= 1e-6
    return Seen(f"{share:.1e} differ, by {int(apart.max())} at most; {error:.1e}", is_right)


@cache
def _on_cpu(instructions: tuple[str, ...]) -> tuple[Outputs, dict[str, float]]:
    """Return what float32 gives on the CPU, and the errors of bf16 there."""
    exact = answered(AttentionKernel.eager, CPU, torch.float32, instructions)
    return exact, _errors(answered(AttentionKernel.eager, CPU, torch.bfloat16, instructions), exact)


def answered(
    kernel: AttentionKernel, device: torch.device, dtype: torch.dtype, instructions: tuple[str, ...] = INSTRUCTIONS[:1]
) -> Outputs:
    """Return the logits of 8 rows, and all gradients of a number made of logits and values, in float64 on the CPU."""
    return _passes(kernel, device, dtype, instructions)()


def _passes(
    kernel: AttentionKernel,
    device: torch.device,
    dtype: torch.dtype,
    instructions: tuple[str, ...],
    backend: CompileBackend | None = None,
) -> Callable[[], Outputs]:
    work = workload("libero", 0, 2, is_small=True)
    work.run.policy.attention, work.run.policy.compile_backend = kernel, backend
    policy = filled_policy(work, device, dtype)
    frames = observation_of(work, NUM_ROWS, instructions).frames
    parameters = [p for p in policy.module.parameters() if p.requires_grad]

    def once() -> Outputs:
        distribution, value = policy(frames.images, frames.instructions, frames.proprio, 1.0)
        loss = distribution.logits.square().mean() + value.float().square().mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = torch.cat([_exact(gradient).flatten() for gradient in gradients if gradient is not None])
        return {"logits": _exact(distribution.logits), "gradient": flat}

    return once


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _errors(ours: Outputs, exact: Outputs) -> dict[str, float]:
    return {name: norm_error(ours[name], exact[name]) for name in exact}


def _shown(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {error:.1e}" for name, error in errors.items())


def _seconds(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


FUSED = (AttentionKernel.sdpa, AttentionKernel.flash)
ATTENTION = [attention_row(kernel, lengths) for kernel in FUSED for lengths in LENGTHS]
ROWS = [float32, *ATTENTION, inductor, sampled]
