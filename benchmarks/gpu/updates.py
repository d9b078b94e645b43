"""Rows of updates: collectives of one rank, FSDP2 in bf16, both optimizers, waits for the device."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.row import Pretence, Seen, row
from benchmarks.gpu.workload import Workload, actor, join_alone, trajectory_of, workload
from rlrun.actor import process_group
from rlrun.actor.learner import Learner
from rlrun.actor.optimizer import EightBitAdamW, GuardedOptimizer, ShardAdamW
from rlrun.actor.process_group import Ranks
from rlrun.actor.sharding import form_mesh
from rlrun.actor.updates import update
from rlrun.config.schema import ActorConfig, Precision
from tests.numerics import norm_error

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]
SYNCHRONIZES = "called a synchronizing CUDA operation"  # torch's warning, see torch.cuda.set_sync_debug_mode
MAX_WAITS = 3  # per micro-batch; pretended CUDA counts none
MAX_STEP_WAITS = 4  # per optimizer step beside: counts of a minibatch over all ranks, and the norm of gradients
NUM_SHARDS = 851  # that a step moves with adapters of rank 32 on 7.5 billion parameters
MAX_STEP_S, MAX_FIRST_STEP_S = 0.05, 1.0


@row("NCCL group of one", "every collective returns what went in", pretence=Pretence.cannot)
def nccl(machine: Machine) -> Seen:
    """All collectives that FSDP2 and weight sync use."""
    with _alone(machine.device):
        sent = torch.arange(1 << 20, device=machine.device, dtype=torch.float32)
        reduced, gathered, scattered, received = sent.clone(), *(torch.empty_like(sent) for _ in range(2)), sent.clone()
        dist.all_reduce(reduced)
        dist.all_gather_into_tensor(gathered, sent)
        dist.reduce_scatter_tensor(scattered, sent)
        dist.broadcast(received, 0)
        wrong = [
            name
            for name, got in {
                "all_reduce": reduced,
                "all_gather": gathered,
                "reduce_scatter": scattered,
                "broadcast": received,
            }.items()
            if not torch.equal(got, sent)
        ]
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return Seen(f"NCCL {version}: " + (f"wrong: {', '.join(wrong)}" if wrong else "all equal"), not wrong)


@row("FSDP2 update in bf16", "weights move like those of float32 on the CPU, at most twice as far off as bf16 there")
def fsdp(machine: Machine) -> Seen:
    """One optimizer step of two micro-batches, with checkpointing and float32 masters."""
    exact = _moved(CPU, Precision.fp32)
    usual = norm_error(_moved(CPU, Precision.bf16), exact)
    error = norm_error(_moved(machine.device, Precision.bf16), exact)
    return Seen(f"{error:.1e}; CPU {usual:.1e}", error <= 2 * usual)


@row("fused AdamW", "ten float32 steps at most twice as far from those in float64 as the CPU's")
def fused_adamw(machine: Machine) -> Seen:
    """The optimizer of every run, on the same gradients."""
    exact = _stepped(ShardAdamW, CPU, torch.float64)
    usual = norm_error(_stepped(ShardAdamW, CPU), exact)
    error = norm_error(_stepped(ShardAdamW, machine.device), exact)
    return Seen(f"{error:.1e}; CPU {usual:.1e}", error <= 2 * usual)


@row(
    "8-bit AdamW",
    "ten steps at most 10 % off plain AdamW on the CPU",
    needs=("bitsandbytes",),
    pretence=Pretence.cannot,
)
def eight_bit_adamw(machine: Machine) -> Seen:
    """bitsandbytes' CUDA kernels."""
    error = norm_error(_stepped(EightBitAdamW, machine.device), _stepped(ShardAdamW, CPU))
    return Seen(f"{100 * error:.1f} %", error <= 0.1)


@row(
    f"optimizer step, {NUM_SHARDS} shards",
    f"at most {1000 * MAX_STEP_S:.0f} ms; the first one at most {MAX_FIRST_STEP_S:g} s",
)
def many_shards(machine: Machine) -> Seen:
    """Clipping and AdamW of as many sharded tensors as adapters have, each [4096, 32]."""
    with _alone(machine.device):
        first, *later = step_seconds(machine.device, (64, 8) if machine.is_pretended else (4096, 32))
    step = statistics.median(later)
    return Seen(f"{1000 * step:.0f} ms; first {first:.2f} s", step <= MAX_STEP_S and first <= MAX_FIRST_STEP_S)


def step_seconds(device: torch.device, shape: tuple[int, int], num_steps: int = 6) -> list[float]:
    """Return the wall seconds of optimizer steps on NUM_SHARDS tensors of a shape, sharded over the ranks."""
    module = nn.ParameterList(torch.zeros(shape) for _ in range(NUM_SHARDS)).to(device)
    config, ranks = ActorConfig(), Ranks(device)
    mesh = form_mesh(config, ranks, device, timeout_s=60.0)
    fully_shard(module, mesh=mesh)
    optimizer = GuardedOptimizer(module, config, lr=1e-4, value_lr=1e-4, warmup_steps=0)
    seconds = []
    for _ in range(num_steps):
        for parameter in optimizer.parameters:
            parameter.grad = torch.ones_like(parameter)
        _finish(device)
        started = time.monotonic()
        optimizer.step(ranks)
        _finish(device)
        seconds.append(time.monotonic() - started)
    return seconds


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@row("waits for the device", f"at most {MAX_WAITS} in a micro-batch")
def waits(machine: Machine) -> Seen:
    """An update of four micro-batches against one of two: what one more micro-batch waits for, by line."""
    with _alone(machine.device):
        more = _waits_of(machine, 1, 4) - _waits_of(machine, 1, 2)
    number = sum(more.values()) / 2
    return Seen(_shown(more, 2), number <= MAX_WAITS)


@row("waits for the device, of an optimizer step", f"at most {MAX_STEP_WAITS} beside those of micro-batches")
def step_waits(machine: Machine) -> Seen:
    """Four micro-batches in two optimizer steps against four in one."""
    with _alone(machine.device):
        more = _waits_of(machine, 2, 2) - _waits_of(machine, 1, 4)
    return Seen(_shown(more, 1), sum(more.values()) <= MAX_STEP_WAITS)


def _shown(waits: Counter[str], num_times: int) -> str:
    lines = ", ".join(f"{line} x {count / num_times:g}" for line, count in waits.most_common(6))
    return f"{sum(waits.values()) / num_times:g}: {lines}"


def _waits_of(machine: Machine, num_steps: int, num_micro_batches: int) -> Counter[str]:
    """Count by line of rlrun's sources what an update waits for. num_micro_batches: of each optimizer step."""
    work = _small(Precision.bf16)
    work.run.algorithm.global_batch_size = 2 * num_micro_batches
    learner = actor(work, machine.device)
    batch = trajectory_of(work, 2 * num_micro_batches * num_steps)
    update(learner, batch)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            update(learner, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Counter(_line(warning) for warning in caught if SYNCHRONIZES in str(warning.message))


def _line(warning: warnings.WarningMessage) -> str:
    path = Path(warning.filename)
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{where}:{warning.lineno}"


@contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    join_alone(device)
    try:
        yield
    finally:
        process_group.leave()


def _small(precision: Precision) -> Workload:
    work = workload("libero", 0, 2, is_small=True)
    work.run.actor.param_precision = work.run.actor.reduce_precision = precision
    work.run.actor.optimizer_precision = Precision.fp32
    # A large eps makes the step proportional to the gradient; else the sign of tiny ones decides, which is noise.
    work.run.actor.eps, work.run.actor.lr, work.run.actor.value_lr = 1e3, 1e3, 1e3
    return work


def _moved(device: torch.device, precision: Precision) -> Tensor:
    """Return by how much each weight moves in one update, float64 on the CPU."""
    work = _small(precision)
    with _alone(device):
        learner = actor(work, device)
        before = _weights(learner)
        update(learner, trajectory_of(work, work.run.algorithm.global_batch_size))
        return _weights(learner) - before


def _weights(learner: Learner) -> Tensor:
    whole = learner.sharded.full_tensors(learner.sharded.shards().items())
    return torch.cat([tensor.detach().cpu().double().flatten() for _, tensor in whole if tensor.is_floating_point()])


def _stepped(kind: type[ShardAdamW], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return by how much two matrices move in ten steps, float64 on the CPU."""
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(300, 500, generator=draw), torch.randn(64, generator=draw)]
    parameters = [nn.Parameter(tensor.clone().to(device, dtype)) for tensor in start]
    optimizer = kind(parameters, lr=1e-3, weight_decay=0.01, fused=True)
    for _ in range(10):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw).to(device, dtype)
        optimizer.step()
    ends = [parameter.detach().cpu().double() for parameter in parameters]
    return torch.cat([(end - begin).flatten() for end, begin in zip(ends, start, strict=True)])


ROWS = [nccl, fsdp, fused_adamw, eight_bit_adamw, many_shards, waits, step_waits]
