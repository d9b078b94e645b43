"""The process group of the actor ranks, with a deadline on every step of joining."""

from __future__ import annotations

import errno
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rlrun.system.errors import ExitStatus, RunError


def torch_backend(planned: str, device: torch.device) -> str:
    """Return the planned backend as torch spells it; NCCL comes with Gloo for offloaded tensors.

    Raises RunError if the plan uses an accelerator that this process does not see.
    Example: torch_backend("nccl", torch.device("cuda")) == "cpu:gloo,cuda:nccl"
    """
    if planned == "gloo":
        return "gloo"
    if device.type == "cpu":
        raise RunError(
            "The plan trains on accelerators, but torch sees none here.",
            cause=f"torch {torch.__version__}, CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}",
            remedy="Install torch with CUDA on this node and check `nvidia-smi`, or place actors without accelerators.",
            exit_status=ExitStatus.doctor,
        )
    return f"cpu:gloo,{device.type}:nccl"


def join(rank: int, world_size: int, address: str, port: int, backend: str, timeout_s: float) -> None:
    """Form the default process group, then verify with one collective per backend that every rank answers.

    A single rank ignores `address` and `port`. The network interface must be set before (GLOO_SOCKET_IFNAME,
    NCCL_SOCKET_IFNAME). Raises RunError naming rank, address, deadline and remedy if a peer does not join within
    `timeout_s`. Gloo itself may try several times longer, so the caller needs its own deadline as well.
    """
    timeout = timedelta(seconds=timeout_s)
    started = time.monotonic()
    try:
        store = dist.HashStore() if world_size == 1 else _meeting(rank, world_size, address, port, timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
        devices = [part.split(":")[0] for part in backend.split(",") if ":" in part] or ["cpu"]
        totals = [_counted(torch.device(device)) for device in devices]
    except (RuntimeError, ValueError, OSError) as error:
        leave()
        raise _not_joined(
            rank, world_size, f"{address}:{port}", timeout_s, time.monotonic() - started, error
        ) from error
    if totals != [world_size] * len(totals):
        raise RunError(
            f"The first collectives counted {totals} ranks instead of {world_size}.",
            cause="Ranks of another run met in the same group, or a collective of this build of torch is broken.",
            remedy="Start the run again, with another cluster.store_port if you set it.",
            exit_status=ExitStatus.worker_lost,
        )


def _meeting(rank: int, world_size: int, address: str, port: int, timeout: timedelta) -> dist.TCPStore:
    """Open rank 0's store for exchanging addresses. Listens on `address` only, torch's own on all interfaces."""
    fd = socket.create_server((address, port)).detach() if rank == 0 else None
    return dist.TCPStore(address, port, world_size, rank == 0, timeout, master_listen_fd=fd)


def _not_joined(rank: int, world_size: int, where: str, timeout_s: float, took_s: float, error: Exception) -> RunError:
    is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    if is_taken:
        remedy = "Another process listens there: set another cluster.store_port, or remove it for any free port."
    else:
        remedy = (
            f"Every rank must be started, reach {where} and advertise an address that the others can reach; "
            "`python -m rlrun.doctor` checks each pair."
        )
    when = f"within {timeout_s:g} s" if took_s >= 0.9 * timeout_s else f"and gave up after {took_s:.1f} s"
    return RunError(
        f"Actor rank {rank} of {world_size} could not join the process group at {where} {when}.",
        cause=str(error),
        remedy=remedy,
        exit_status=ExitStatus.doctor if is_taken else ExitStatus.stalled,
    )


def _counted(device: torch.device) -> int:
    """Return the number of ranks, by an all-reduce of ones on this device."""
    count = torch.ones(1, device=device)
    dist.all_reduce(count)
    return int(count)


def new_gloo_group(timeout_s: float) -> dist.ProcessGroup:
    """Form a second group of all ranks, over Gloo, for a thread of its own; all ranks call it after `join`."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return group


def leave() -> None:
    """Destroy the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


class Ranks:
    """Collectives of small tensors over all actor ranks, with the group's deadline.

    Tensors of the host meet there, over Gloo: by way of the device each would wait for all that it still has to do.

    Example: with two ranks, `ranks.sum(torch.tensor([1.0]))` is tensor([2.0]) on both.
    """

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None):
        """group: with all ranks; None: the default one."""
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.group = group
        self.device = device

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, on the device of `x`."""
        return self._reduced(x, dist.ReduceOp.SUM)

    def max(self, x: Tensor) -> Tensor:
        """Return the maximum over all ranks, on the device of `x`."""
        return self._reduced(x, dist.ReduceOp.MAX)

    def any(self, flag: bool) -> bool:
        """Return True on every rank if it is true on any."""
        return flag if self.world_size == 1 else bool(self.max(torch.tensor([flag], dtype=torch.int32)))

    def gather(self, value: object) -> list:
        """Return one small picklable value of every rank, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        """Wait on Gloo until all ranks are here: NCCL would count its deadline while rank 0 writes to its disk."""
        if self.world_size > 1:
            dist.all_reduce(torch.zeros(1), group=self.group)

    def _reduced(self, x: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.world_size == 1:  # Gloo with one rank takes longer than a forward pass of a small network
            return x.detach().clone()
        shared = x.detach().clone()
        dist.all_reduce(shared, op, group=self.group)
        return shared
