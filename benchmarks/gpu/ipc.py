"""Row of weights between two processes on one card: the receiver's memory, opened and written by the sender."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import Pretence, Seen, row
from rlrun.edges.buckets import checksum, lay_out, pack, unpack
from rlrun.edges.device_memory import NUM_BUFFERS, DeviceMemory, DeviceSender, OpenedMemory
from rlrun.placement.node_environment import GROWING

NUM_TENSORS, NUMBERS = 24, 90_000_000  # 4.3 GB in bfloat16, in tensors as large as Llama's
BUCKET_BYTES = 512 * 1024**2
POLICY_BYTES = 15e9  # of 7.5 billion parameters
NUM_REPEATS = 3
DEADLINE_S = 60.0
ALLOCATOR = "PYTORCH_ALLOC_CONF"


@row(
    "sync by IPC, two processes",
    "15 GB in at most 0.4 s, bits equal, the sender's allocator is expandable",
    pretence=Pretence.cannot,
)
def by_ipc(machine: Machine) -> Seen:
    """As an actor worker, whose allocator has expandable segments, sends to a rollout worker, whose has not."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs, str(machine.device), NUM_TENSORS, NUMBERS), daemon=True)
    with allocator_of_rollout_workers():
        process.start()
    try:
        return _measured(ours, machine.device)
    finally:
        process.kill()
        process.join(DEADLINE_S)


@contextmanager
def allocator_of_rollout_workers() -> Iterator[None]:
    """Take expandable segments out of the settings that a new process gets."""
    before = os.environ.pop(ALLOCATOR, None)
    theirs = (before or "").removeprefix(GROWING).removeprefix(",")
    if theirs:
        os.environ[ALLOCATOR] = theirs
    try:
        yield
    finally:
        os.environ.pop(ALLOCATOR, None)
        if before is not None:
            os.environ[ALLOCATOR] = before


def _measured(pipe: Connection, device: torch.device) -> Seen:
    tensors = {f"layer{i}": torch.randn(NUMBERS, device=device).to(torch.bfloat16) for i in range(NUM_TENSORS)}
    layout = lay_out(tensors.items(), BUCKET_BYTES)
    sender = DeviceSender([OpenedMemory(_answer(pipe))], layout)
    seconds = []
    for version in range(1 + NUM_REPEATS):
        started = time.monotonic()
        buckets = sender.send(pack(tensors.items(), layout, version, buffer=sender.buffer))
        for index in range(len(layout.buckets) + NUM_BUFFERS):
            if index >= NUM_BUFFERS:
                _answer(pipe)
            if index < len(layout.buckets):
                pipe.send(next(buckets))
        seconds.append(time.monotonic() - started)
    pipe.send(None)
    arrived = _answer(pipe)
    differing = sum(arrived[name] != _sum(tensor) for name, tensor in tensors.items())
    needed_s = statistics.median(seconds[1:]) * POLICY_BYTES / layout.num_bytes
    rate = POLICY_BYTES / 1e9 / needed_s
    grows = is_expandable(device)
    allocator = "expandable" if grows else "not expandable"
    text = f"15 GB in {needed_s:.2f} s, {rate:.0f} GB/s, {differing} tensors differ, sender {allocator}"
    return Seen(text, needed_s <= 0.4 and differing == 0 and grows)


def is_expandable(device: torch.device) -> bool:
    """Return whether all memory that torch holds on a card is in expandable segments."""
    segments = torch.cuda.memory_snapshot() if device.type == "cuda" else []
    return bool(segments) and all(segment["is_expandable"] for segment in segments)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(DEADLINE_S):
        raise TimeoutError(f"the receiver has not answered for {DEADLINE_S:g} s")
    return pipe.recv()


def _sum(tensor: torch.Tensor) -> int:
    return checksum(tensor.view(torch.uint8))


def _receive(pipe: Connection, device: str, num_tensors: int, numbers: int) -> None:
    """A rollout worker: says its handles, acknowledges each bucket, and ends with the sums of its tensors."""
    memory = DeviceMemory(BUCKET_BYTES, torch.device(device))
    held = {f"layer{i}": torch.empty(numbers, dtype=torch.bfloat16, device=device) for i in range(num_tensors)}
    pipe.send(memory.shared())
    while (found := pipe.recv()) is not None:
        for name, tensor in unpack(memory.open(found)):
            held[name].copy_(tensor, non_blocking=True)
        memory.finish()
        pipe.send("done")
    pipe.send({name: _sum(tensor) for name, tensor in held.items()})


ROWS = [by_ipc]
