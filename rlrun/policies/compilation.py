"""torch.compile over a policy, block by block, so that one graph serves all blocks of a kind."""

from __future__ import annotations

import inspect
import os
import shutil
from importlib.util import find_spec

import torch

from rlrun.config.schema import CompileBackend
from rlrun.policies.policy import Policy
from rlrun.system.errors import ExitStatus, RunError

KEY = "policy.compile_backend"
MAX_GRAPHS = 32  # graphs per function: towers, batch sizes one and many, with and without gradients


def compile_policy(policy: Policy, backend: CompileBackend | None) -> None:
    """Compile the forward pass of every block in place, or of the whole module if the policy has no blocks.

    Only `forward` is compiled: FSDP's and activation checkpointing's hooks around a block stay outside the graph, and
    parameters keep their names. The first passes make the graphs. Raises RunError if no compiler works here.
    backend: None compiles nothing.
    """
    if backend is None:
        return
    if backend is CompileBackend.inductor:
        _require_compiler(policy.device)
    torch.compiler.config.recompile_limit = max(torch.compiler.config.recompile_limit, MAX_GRAPHS)
    for part in [block for stack in policy.stacks() for block in stack] or [policy.module]:
        own = inspect.unwrap(type(part).forward).__get__(part)  # transformers wraps all layers in one function
        part.forward = torch.compile(own, backend=backend.value)


def _require_compiler(device: torch.device) -> None:
    """Require Inductor's compilers, since its own error comes at the first pass: Triton for a GPU, C++ for both."""
    cause, compiler = None, os.environ.get("CXX", "g++")  # the command that Inductor calls
    if shutil.which(compiler) is None:
        cause = f"There is no C++ compiler {compiler} here."
    if device.type != "cpu" and find_spec("triton") is None:
        cause = "The package triton is not installed here."
    if cause is None:
        return
    raise RunError(
        "torch.compile cannot work on this node.",
        key=KEY,
        value=CompileBackend.inductor.name,
        cause=cause,
        remedy="Install it (`apt-get install g++`; triton comes with torch's CUDA builds), or leave the key out.",
        exit_status=ExitStatus.doctor,
    )
