"""Rows of memory: what offloading frees on the card, what it costs on the host, and that no bit changes."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from benchmarks.gpu import ipc
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import LeftOut, Pretence, Seen, row
from rlrun.placement.node_environment import PINNING
from rlrun.policies.offloading import Offloader
from rlrun.policies.upload import uploaded

NUM_TENSORS, MEGABYTES = 24, 66  # just above a power of two: an allocator that rounds up takes almost twice as much
NUM_UPLOADS, NUM_IN_FLIGHT = 200, 8
LARGEST_UPLOAD = 24 * 1024 * 1024  # bytes


@row("offloading: freed on the card", "at least 95 % of the bytes, by mem_get_info", pretence=Pretence.cannot)
def freed(machine: Machine) -> Seen:
    """Memory in the allocator's cache would not count."""
    tensors = _tensors(machine)
    offloader = Offloader(machine.device)
    before = torch.cuda.mem_get_info(machine.device)[0]
    offloader.offload(tensors)
    gained = torch.cuda.mem_get_info(machine.device)[0] - before
    return Seen(f"{gained / 1e9:.2f} of {offloader.num_bytes / 1e9:.2f} GB", gained >= 0.95 * offloader.num_bytes)


@row("offloading: bits", "equal after the way back, twice", pretence=Pretence.cannot)
def bits(machine: Machine) -> Seen:
    """The second time host buffers are used again."""
    tensors = _tensors(machine)
    kept = [tensor.cpu() for tensor in tensors]
    offloader, wrong = Offloader(machine.device), 0
    for _ in range(2):
        offloader.offload(tensors)
        offloader.onload()
        wrong += sum(not torch.equal(tensor.cpu(), copy) for tensor, copy in zip(tensors, kept, strict=True))
    return Seen(f"{wrong} of {2 * NUM_TENSORS} tensors differ", wrong == 0)


@row("offloading: host memory", "at most 15 % more than the bytes", pretence=Pretence.cannot)
def pinned(machine: Machine) -> Seen:
    """Pinned memory is not the process's own for the kernel, so the whole machine's is measured."""
    if PINNING not in os.environ.get("PYTORCH_ALLOC_CONF", ""):
        raise LeftOut("torch before 2.13 rounds pinned memory up to powers of two")
    tensors = _tensors(machine)
    offloader = Offloader(machine.device)
    before = _available_bytes()
    offloader.offload(tensors)
    taken = before - _available_bytes()
    return Seen(f"{taken / 1e9:.2f} for {offloader.num_bytes / 1e9:.2f} GB", taken <= 1.15 * offloader.num_bytes)


@row("offloading: speed", "at least 8 GB/s each way: pageable memory reaches 4 to 6", pretence=Pretence.cannot)
def speed(machine: Machine) -> Seen:
    """The second time, as the first one pins the memory."""
    tensors = _tensors(machine)
    offloader = Offloader(machine.device)
    moves = [move for _ in range(2) for move in (offloader.offload(tensors), offloader.onload())][2:]
    there, back = (move.num_bytes / 1e9 / move.seconds for move in moves)
    return Seen(f"{there:.1f} to the host, {back:.1f} back, GB/s", min(there, back) >= 8)


@row("pinned uploads", f"{NUM_UPLOADS} of changing size, bytes equal")
def uploads(machine: Machine) -> Seen:
    """Frames of answers and micro-batches, of which some are on their way while others are packed."""
    draw = torch.Generator().manual_seed(0)
    source = torch.randint(0, 256, (LARGEST_UPLOAD,), dtype=torch.uint8, generator=draw)
    sizes = torch.randint(1, LARGEST_UPLOAD, (NUM_UPLOADS,), generator=draw).tolist()
    wrong = 0
    for first in range(0, NUM_UPLOADS, NUM_IN_FLIGHT):
        parts = [source[-size:] for size in sizes[first : first + NUM_IN_FLIGHT]]
        sent = [uploaded([part], machine.device)[0] for part in parts]
        wrong += sum(not torch.equal(there.cpu(), part) for there, part in zip(sent, parts, strict=True))
    return Seen(f"{wrong} of {NUM_UPLOADS} differ", wrong == 0)


def _available_bytes() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return 1024 * int(line.split()[1])


def _tensors(machine: Machine) -> list[torch.Tensor]:
    size = MEGABYTES * 1024 * 1024
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, device=machine.device) for _ in range(NUM_TENSORS)]


ROWS = [*ipc.ROWS, freed, bits, pinned, speed, uploads]
