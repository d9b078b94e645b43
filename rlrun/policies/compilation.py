"""How the blocks of a policy compute: with activations kept or computed again, by torch's own kernels or compiled."""

from __future__ import annotations

import inspect
import math
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlrun.config.schema import CompileBackend
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.notices import notice

if TYPE_CHECKING:
    from rlrun.policies.policy import Policy

KEY = "policy.compile_backend"
MAX_GRAPHS = 32  # graphs per function: towers, batch sizes one and many, with and without gradients
STANDARD = "-std=c++20"  # in which Inductor writes; gcc knows it from 10 on
CACHE = "TORCHINDUCTOR_CACHE_DIR"  # where Inductor and Triton put what they compile, in place of the temporary folder
SEARCHED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")  # folders in which compilers look for headers
COMPILER_S = 60.0
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
            remedy="Install what is missing (`apt-get install g++ python3-dev`; triton comes with torch for CUDA), "
            f"let {CACHE} name a folder from which programs may run, or set the key to none.",
            exit_status=ExitStatus.doctor,
        )
    return None if asked is CompileBackend.none else asked


def compiler_fault(device: torch.device) -> str | None:
    """Return the obstacle to Inductor here, which needs C++, and Triton on a GPU. Its own error comes later."""
    compiler = os.environ.get("CXX", "g++")  # the command that Inductor calls
    if shutil.which(compiler) is None:
        return f"There is no C++ compiler {compiler} here."
    if not _knows_standard(compiler):
        return f"The C++ compiler {compiler} is too old: it refuses {STANDARD}."
    if device.type != "cpu" and find_spec("triton") is None:
        return "The package triton is not installed here."
    if not any((folder / "Python.h").is_file() for folder in _header_folders()):
        return f"Python.h, which compiled kernels include, is not in {sysconfig.get_path('include')}."
    return _noexec_fault(Path(os.environ.get(CACHE) or tempfile.gettempdir()).absolute())


@cache
def _knows_standard(compiler: str) -> bool:
    """Return False only if the compiler says that it does not compile an empty source in this version of C++."""
    command = [compiler, STANDARD, "-fsyntax-only", "-x", "c++", os.devnull]
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=COMPILER_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return True


def _header_folders() -> list[Path]:
    """Return the folders in which the compilers look for Python's headers. Debian's own scheme names another."""
    schemes = [sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix")]
    added = [folder for name in SEARCHED for folder in os.environ.get(name, "").split(os.pathsep) if folder]
    return [Path(folder) for folder in (*schemes, *added)]


def _noexec_fault(folder: Path) -> str | None:
    """Return the obstacle to loading compiled code from a folder, which need not exist yet."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return f"Compiled kernels go to {folder}, on a file system that is mounted noexec."
    return None


class Fallback:
    """Return to torch's own kernels if a first compiled pass fails and the configuration does not ask for compilation.

    A rank whose pass fails goes on uncompiled at once, since the others wait for it in collectives, which are the same
    in both cases. At the next moment at which all ranks meet, the others follow: see `settle`.
    """

    def __init__(self) -> None:
        self.fault = ""  # of the first pass that failed
        self.is_taken = False
        self._is_settled = False
        self._plain: list[tuple[nn.Module, Callable[..., Any]]] = []

    def guarded(self, part: nn.Module, compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled forward function of a part, in whose place `plain` computes if it fails."""
        self._plain.append((part, plain))

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._is_settled:
                return compiled(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of the compilers, or of the part itself, which `plain` then raises again
                made = plain(*args, **kwargs)
                self.fault = self.fault or f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                self._take_back()
                return made

        return forward

    def settle(self, gather: Callable[[object], list], is_teller: bool) -> None:
        """Go back on all ranks if one of them has; all ranks call it after their first passes, together.

        gather: returns a value of every rank. is_teller: whether this rank says so. Does nothing at later calls.
        """
        if self._is_settled:
            return
        fault = next(filter(None, gather(self.fault)), "")
        self._is_settled = True
        if not fault:
            return
        self._take_back()
        if is_teller:
            notice(
                f"actor ranks compute by torch's own kernels, since the first compiled pass failed ({fault}). Set "
                f"{KEY}=none to begin so, or {KEY}=inductor to see the whole error."
            )

    def _take_back(self) -> None:
        self.is_taken = True
        for part, plain in self._plain:
            part.forward = plain


def prepare_blocks(
    policy: Policy,
    backend: CompileBackend | None = None,
    checkpointed: float = 0.0,
    progress: Callable[[], None] | None = None,
    fallback: Fallback | None = None,
) -> None:
    """Set in place how every block computes, or the whole module, if the policy has no blocks.

    backend: of torch.compile; None: torch's own kernels. checkpointed: share of the blocks of each stack that keep only
    their input, and compute again what the backward pass needs. Both together are one graph, so that the compiler sees
    what is computed again.
    progress: called after each of a block's first passes, in which graphs are made for minutes.
    fallback: the way back if such a pass fails; None: it raises.

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
        plain_forward = inspect.unwrap(type(part).forward)  # transformers wraps all layers in one function
        forward = _recomputed(plain_forward) if id(part) in chosen else plain_forward
        plain = forward.__get__(part)
        compiled = torch.compile(plain, backend=backend.value)
        counted = compiled if progress is None else _counted(compiled, progress)
        part.forward = counted if fallback is None else fallback.guarded(part, counted, plain)


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
