"""OpenVLA-OFT at 7.5 billion parameters on one GPU: `python -m benchmarks.gpu_7b [--robot libero] [--lora 32] …`.

Prints first what the plan's memory model and the meta device say, which needs no GPU, then measures the same with
random weights: act() by batch, an update, MFU of both, weight sync, moves between device and host, peak memory beside
the estimate; and checks that actor and rollout compute the same numbers. Without a GPU it says so, after the estimates,
and ends with status 4. With --json, the lines go to stderr and all numbers to stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.gpu.workload import (
    ROBOTS,
    Workload,
    actor,
    join_alone,
    observation_of,
    rollout,
    trajectory_of,
    workload,
)
from rlrun.actor import process_group
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.schema import AttentionKernel, CompileBackend
from rlrun.data.messages import Trajectory
from rlrun.placement.memory import actor_memory
from rlrun.placement.step_cost import peak_flops
from rlrun.policies.counting import count
from rlrun.policies.counts import PolicyCounts
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.rollout.hf import HFBackend
from rlrun.system.errors import ExitStatus
from rlrun.weight_sync.buckets import lay_out, pack
from rlrun.weight_sync.shared import SharedReceiver, SharedSender, WeightMemory

PARAMETERS = 7_541_237_184
BUCKET_BYTES = 256 * 1024**2


@dataclass
class Report:
    """Prints each measurement when it is there, and keeps its numbers for --json."""

    is_json: bool = False
    num_repeats: int = 1
    numbers: dict[str, dict[str, float | str]] = field(default_factory=dict)

    def add(self, name: str, text: str, **numbers: float | str) -> None:
        """Print a line, and keep the numbers under its name."""
        self.numbers[name] = numbers
        print(f"{name:<22} {text}", flush=True, file=sys.stderr if self.is_json else sys.stdout)

    def close(self) -> None:
        """Print all numbers, if JSON was asked for."""
        if self.is_json:
            print(json.dumps(self.numbers, indent=1))


def main() -> int:
    """Print estimates, then measurements if there is a GPU."""
    arguments = _arguments()
    micro_batches, batches = tuple(arguments.micro_batches), tuple(arguments.batches)
    work = workload(arguments.robot, arguments.lora, micro_batches[0], batches, arguments.small_layers)
    work.run.policy.attention = AttentionKernel[arguments.attention] if arguments.attention else None
    work.run.policy.compile_backend = CompileBackend.inductor if arguments.compile else None
    work.run.actor.activation_checkpointing = arguments.checkpointing
    counts = count(work.run)
    report = Report(arguments.json, arguments.repeats)
    estimates(work, counts, report)
    if not torch.cuda.is_available():
        report.close()
        print("\nNo GPU: torch sees none here, so nothing was measured. The numbers above are estimates.")
        return int(ExitStatus.doctor)
    measure(work, counts, torch.device("cuda", 0), report, micro_batches, arguments.offload)
    report.close()
    return int(ExitStatus.ok)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", choices=ROBOTS, default="behavior")
    parser.add_argument("--lora", type=int, default=32, help="rank of the adapters; 0 trains all weights")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[2, 8, 32], help="rows of a pass of the update")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="rows of an act()")
    parser.add_argument("--repeats", type=int, default=5, help="of each measured call; the median counts")
    parser.add_argument("--attention", choices=[kernel.name for kernel in AttentionKernel], help="default: the best")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, with inductor")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false", help="keep all activations")
    parser.add_argument("--no-offload", dest="offload", action="store_false", help="rollout and actor stay on the card")
    parser.add_argument("--json", action="store_true", help="print the numbers to stdout, and lines to stderr")
    parser.add_argument("--small-layers", action="store_true", help="try the program with a small model")
    return parser.parse_args()


# --- without a GPU ---------------------------------------------------------------------------


def estimates(work: Workload, counts: PolicyCounts, report: Report) -> None:
    """Print memory by the plan's estimate, and operations counted on the meta device."""
    memory = actor_memory(work.run, counts)
    flops = forward_flops(work.model)
    row = f"{counts.num_parameters / 1e9:.3f} G parameters, {counts.stacks[-1].num_tokens} tokens a row"
    report.add("policy", row, parameters=counts.num_parameters)
    report.add("forward pass", f"{flops / 1e12:8.2f} TFLOP a row (meta device)", flops=flops)
    for name, amount in {**memory.parts(), "peak": memory.peak_bytes}.items():
        report.add(f"update: {name}", f"{amount / 1e9:8.2f} GB", bytes=amount)
    report.add("rollout copy", f"{2 * counts.num_parameters / 1e9:8.2f} GB", bytes=2 * counts.num_parameters)


def forward_flops(config: OpenVLAOFTConfig) -> int:
    """Return the operations of one row, matrix products only."""
    from torch.utils.flop_counter import FlopCounterMode

    height, width = config.image_sizes
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        pixels = torch.zeros(1, 6 * config.num_images, height, width)
        proprio = torch.zeros(1, config.num_proprio) if config.num_proprio else None
        OpenVLAOFT(config)(torch.zeros(1, 50, dtype=torch.long), None, pixels, proprio)
    return counter.get_total_flops()


# --- with one --------------------------------------------------------------------------------


def measure(
    work: Workload,
    counts: PolicyCounts,
    device: torch.device,
    report: Report,
    micro_batches: Sequence[int],
    offloads: bool = True,
) -> None:
    """Measure rollout, actor and weight sync. With `offloads` only one of the two is on the device at a time."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    flops, peak = forward_flops(work.model), peak_flops(name) or float("nan")
    report.add("device", f"{name}, torch {torch.__version__}", model=name)
    started = time.monotonic()
    backend = rollout(work, device)
    _moved(report, "rollout: weights drawn", time.monotonic() - started)
    for rows in work.batches:
        observation = observation_of(work, rows)
        seconds = median_s(lambda observation=observation: backend.act([observation]), device, report.num_repeats)
        _passes(report, f"act, {rows} rows", rows, seconds, flops * rows / seconds / peak)
    batch = acted_trajectory(work, backend)
    turns = Turns(report, device) if offloads else None
    if turns:
        turns.offload("rollout", backend)
    join_alone(device)
    learner = actor(work, device)
    gap = update(learner, batch)["rollout_logprob_gap"]  # of the first update: the weights are those of the rollout
    report.add("log-probabilities", f"{gap:8.4f} mean distance between actor and rollout", gap=gap)
    for rows in micro_batches:
        train(work, counts, learner, rows, device, report, flops / peak)
    sync(learner, backend, device, report)
    if turns:
        turns.offload("actor", learner)
        turns.onload("rollout", backend)
    compare(learner, backend, report)
    if turns:
        turns.onload("actor", learner)
    process_group.leave()


@dataclass(frozen=True)
class Turns:
    """Measures moves between device and host memory. The first move to the host also makes the pinned memory there."""

    report: Report
    device: torch.device

    def offload(self, role: str, of: Learner | HFBackend) -> None:
        """To host memory, back, and there again."""
        _moved(self.report, f"{role} first offload", once_s(of.offload, self.device))
        of.onload()
        _moved(self.report, f"{role} offload", once_s(of.offload, self.device))

    def onload(self, role: str, of: Learner | HFBackend) -> None:
        """Back to the device."""
        _moved(self.report, f"{role} onload", once_s(of.onload, self.device))


def _passes(report: Report, name: str, rows: int, seconds: float, mfu: float) -> None:
    text = f"{seconds:8.3f} s  {rows / seconds:8.2f} rows/s  MFU {100 * mfu:5.1f} %"
    report.add(name, text, seconds=seconds, rows_per_s=rows / seconds, mfu=mfu)


def _moved(report: Report, name: str, seconds: float) -> None:
    report.add(name, f"{seconds:8.3f} s", seconds=seconds)


def acted_trajectory(work: Workload, backend: HFBackend) -> Trajectory:
    """Return the batch of one update, with the tokens and log-probabilities of the rollout worker's copy."""
    rows = work.run.algorithm.global_batch_size
    return trajectory_of(work, rows, backend.act([observation_of(work, rows)])[0])


def train(
    work: Workload,
    counts: PolicyCounts,
    learner: Learner,
    micro_batch: int,
    device: torch.device,
    report: Report,
    least_s: float,
) -> None:
    """Measure an update of two micro-batches, and its memory against the estimate.

    least_s: of one row's forward pass at the device's peak.
    """
    rows = 2 * micro_batch
    work.run.actor.micro_batch_size, work.run.algorithm.global_batch_size = micro_batch, rows
    batch = trajectory_of(work, rows)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = median_s(lambda: update(learner, batch), device, report.num_repeats)
    passes = 3 if work.run.actor.lora.rank == 0 else 2  # forward, backward; frozen weights need no gradient
    _passes(report, f"update, 2 x {micro_batch} rows", rows, seconds, passes * least_s * rows / seconds)
    if device.type == "cuda":
        measured, estimate = torch.cuda.max_memory_allocated(device), actor_memory(work.run, counts).peak_bytes
        text = f"{measured / 1e9:8.2f} GB, estimate {estimate / 1e9:.2f} GB"
        report.add(f"peak, 2 x {micro_batch} rows", text, bytes=measured, estimate=estimate)


def sync(learner: Learner, backend: HFBackend, device: torch.device, report: Report) -> None:
    """Gather, pack and apply every bucket of a policy version in one process, through the memory of one node."""
    layout = lay_out(learner.weight_layout(), BUCKET_BYTES, torch.bfloat16)
    memory, receiver = WeightMemory(layout), SharedReceiver()

    def send() -> None:
        for sent in SharedSender(memory).send(pack(learner.named_weights(), layout, 1, buffer=memory.buffer)):
            backend.apply(receiver.map_bucket(sent))

    seconds = median_s(send, device, report.num_repeats)
    kind, gigabytes = "pinned" if memory.is_pinned else "pageable", layout.num_bytes / 1e9
    receiver.close()
    memory.close()
    text = f"{seconds:8.3f} s  {gigabytes:.2f} GB, {gigabytes / seconds:.2f} GB/s, by {kind} memory"
    report.add("weight sync", text, seconds=seconds, bytes=layout.num_bytes, memory=kind)


def compare(learner: Learner, backend: HFBackend, report: Report) -> None:
    """Count the tensors of the rollout's copy that differ from the actor's."""
    held = backend.policy.module.state_dict()
    differing = sum(not torch.equal(held[name].cpu(), sent.cpu()) for name, sent in learner.named_weights())
    report.add("weights that differ", f"{differing:8d} tensors after the sync", count=differing)


def median_s(work: Callable[[], object], device: torch.device, num_repeats: int) -> float:
    """Return the median wall seconds of a call after a warm-up."""
    work()
    return statistics.median(once_s(work, device) for _ in range(num_repeats))


def once_s(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall seconds of one call until the device is done."""
    _finish(device)
    started = time.monotonic()
    work()
    _finish(device)
    return time.monotonic() - started


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
