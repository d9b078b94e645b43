"""How the blocks of a policy compute: with activations kept or computed again, by torch's own kernels or compiled."""

from __future__ import annotations

import inspect
import math
import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlrun.config.schema import CompileBackend
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.policies.policy import Policy

KEY = "policy.compile_backend"
MAX_GRAPHS = 32  # graphs per function: towers, batch sizes one and many, with and without gradients
COUNTED_PASSES = 8  # of each block: those in which graphs are made, for either batch size


def chosen_backend(asked: CompileBackend | None, device: torch.device, is_learner: bool) -> CompileBackend | None:
    """Return the backend of `policy.compile_backend` for a role, None: none. Raises RunError if no compiler works here.

    Without a choice an actor rank compiles where it has a GPU and the compilers. A rollout worker does not: its batches
    have many sizes, and a robot or an evaluation waits for its first answers.
    """
    if asked is None:
        is_possible = is_learner and device.type == "cuda" and compiler_fault(device) is None
        return CompileBackend.inductor if is_possible else None
    if asked is CompileBackend.inductor and (fault := compiler_fault(device)) is not None:
        raise RunError(
            "torch.compile cannot work on this node.",
            key=KEY,
            value=CompileBackend.inductor.name,
            cause=fault,
            remedy="Install it (`apt-get install g++`; triton comes with torch's CUDA builds), or set the key to none.",
            exit_status=ExitStatus.doctor,
        )
    return None if asked is CompileBackend.none else asked


def compiler_fault(device: torch.device) -> str | None:
    """Return why Inductor cannot work here: it needs C++, and Triton on a GPU. Its own error comes later."""
    compiler = os.environ.get("CXX", "g++")  # the command that Inductor calls
    if shutil.which(compiler) is None:
        return f"There is no C++ compiler {compiler} here."
    if device.type != "cpu" and find_spec("triton") is None:
        return "The package triton is not installed here."
    return None


def prepare_blocks(
    policy: Policy,
    backend: CompileBackend | None = None,
    checkpointed: float = 0.0,
    progress: Callable[[], None] | None = None,
) -> None:
    """Set in place how every block computes, or the whole module, if the policy has no blocks.

    backend: of torch.compile; None: torch's own kernels. checkpointed: share of the blocks of each stack that keep only
    their input, and compute again what the backward pass needs. Both together are one graph, so that the compiler sees
    what is computed again.
    progress: called after each of a block's first passes, in which graphs are made for minutes.

    Only `forward` changes: FSDP's hooks around a block stay outside the graph, and parameters keep their names.
    """
    blocks = [block for stack in policy.stacks() for block in stack]
    chosen = {id(block) for stack in policy.stacks() for block in _evenly(stack, checkpointed)}
    if backend is None:
        for block in (block for block in blocks if id(block) in chosen):
            block.forward = partial(_recomputed(type(block).forward), block)
        return
    torch.compiler.config.recompile_limit = max(torch.compiler.config.recompile_limit, MAX_GRAPHS)
    for part in blocks or [policy.module]:
        own = inspect.unwrap(type(part).forward)  # transformers wraps all layers in one function
        forward = _recomputed(own) if id(part) in chosen else own
        compiled = torch.compile(forward.__get__(part), backend=backend.value)
        part.forward = compiled if progress is None else _counted(compiled, progress)


def _evenly(stack: Sequence[nn.Module], share: float) -> list[nn.Module]:
    """Return a share of the blocks, evenly spaced. Example: of four blocks and 0.5 the second and the fourth."""
    return [block for i, block in enumerate(stack) if math.floor((i + 1) * share) > math.floor(i * share)]


@cache  # one function a class, since graphs are kept by function
def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward function that keeps its inputs only, and computes the rest again in the backward pass."""

    def recomputed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # nothing in a block draws random numbers, so their state need not be saved, which takes a wait for the device
        return checkpoint(forward, block, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return recomputed


def _counted(forward: Callable[..., Any], progress: Callable[[], None]) -> Callable[..., Any]:
    num_passes = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_passes
        made = forward(*args, **kwargs)
        if num_passes < COUNTED_PASSES:
            num_passes += 1
            progress()
        return made

    return counted
