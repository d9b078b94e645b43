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
from dataclasses import dataclass, field, replace

import torch

from benchmarks.gpu.sync import Legs, NodeMemory
from benchmarks.gpu.workload import (
    NUM_LAYERS,
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
from rlrun.edges.trajectories import Trajectory
from rlrun.placement.budget import HELD_BACK_BYTES, HELD_BACK_SHARE
from rlrun.placement.memory import actor_memory
from rlrun.placement.step_time import device_of, optimizer_step_seconds, update_pass_seconds
from rlrun.policies.counting import count_policy, on_meta
from rlrun.policies.counts import PolicyCounts
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.rollout.adapted import adapted_weights
from rlrun.rollout.backend import unsent_names
from rlrun.rollout.hf import HFBackend
from rlrun.system.errors import ExitStatus, RunError


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
    work = workload(
        arguments.robot, arguments.lora, micro_batches[0], batches, arguments.small_layers, arguments.layers
    )
    work.run.policy.attention = AttentionKernel[arguments.attention] if arguments.attention else None
    work.run.policy.compile_backend = CompileBackend.inductor if arguments.compile else CompileBackend.none
    work.run.actor.activation_checkpointing = arguments.checkpointing
    counts = counted(work, arguments.layers)
    report = Report(arguments.json, arguments.repeats)
    estimates(work, counts, report)
    if not torch.cuda.is_available():
        report.close()
        print("\nNo GPU: torch sees none here, so nothing was measured. The numbers above are estimates.")
        return int(ExitStatus.doctor)
    device = torch.device("cuda", 0)
    if arguments.only_updates:
        measure_updates(work, counts, device, report, micro_batches)
    else:
        measure(work, counts, device, report, micro_batches, arguments.offload)
    report.close()
    return int(ExitStatus.ok)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", choices=ROBOTS, default="behavior")
    parser.add_argument("--lora", type=int, default=32, help="rank of the adapters; 0 trains all weights")
    parser.add_argument("--layers", type=int, default=NUM_LAYERS, help="of the language model")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[2, 8, 32], help="rows of a pass of the update")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="rows of an act()")
    parser.add_argument("--repeats", type=int, default=5, help="of each measured call; the median counts")
    parser.add_argument("--attention", choices=[kernel.name for kernel in AttentionKernel], help="default: the best")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, with inductor")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false", help="keep all activations")
    parser.add_argument("--no-offload", dest="offload", action="store_false", help="rollout and actor stay on the card")
    parser.add_argument("--only-updates", action="store_true", help="no act(), weight sync or moves")
    parser.add_argument("--json", action="store_true", help="print the numbers to stdout, and lines to stderr")
    parser.add_argument("--small-layers", action="store_true", help="try the program with a small model")
    return parser.parse_args()


# --- without a GPU ---------------------------------------------------------------------------


def counted(work: Workload, num_layers: int) -> PolicyCounts:
    """Count the published policy, of whose language model the first layers are left."""
    policy = on_meta(work.run)
    del policy.module.language_model.model.layers[num_layers:]
    return count_policy(policy, work.run)


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


def name_of(device: torch.device) -> str:
    """Return the card's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _peak(name: str) -> float:
    """Return the operations per second of a card by its name; NaN if the table lacks it."""
    device = device_of(name)
    return float("nan") if device is None else device.flops


def planned_seconds(work: Workload, counts: PolicyCounts, micro_batch: int, name: str) -> float:
    """Return the plan's seconds of an update of two micro-batches; NaN if the table lacks the card."""
    device = device_of(name)
    if device is None:
        return float("nan")
    share = float(work.run.actor.activation_checkpointing)
    is_compiled = work.run.policy.compile_backend is CompileBackend.inductor
    passes_s = 2 * update_pass_seconds(counts, share, micro_batch, device, is_compiled)
    return passes_s + optimizer_step_seconds(counts.num_trained, device)


def measure(
    work: Workload,
    counts: PolicyCounts,
    device: torch.device,
    report: Report,
    micro_batches: Sequence[int],
    offloads: bool = True,
) -> None:
    """Measure rollout, actor and weight sync. With `offloads` the two take turns on the device, but for some syncs."""
    work.run.placement.offload = True  # the actor merges its adapters
    name = name_of(device)
    flops, peak = forward_flops(work.model), _peak(name)
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
        backend.policy_version = -1  # as in a run, whose first version comes while the worker is away
        turns.offload("rollout", backend)
    join_alone(device)
    learner = actor(work, device)
    gap = update(learner, batch)["rollout_logprob_gap"]  # of the first update: the weights are those of the rollout
    report.add("log-probabilities", f"{gap:8.4f} mean distance between actor and rollout", gap=gap)
    for rows in micro_batches:
        train(work, counts, learner, rows, device, report, flops / peak)
    if turns:
        turns.offload("actor", learner)
        turns.onload("actor", learner)
    sync(learner, backend, device, report, offloads)
    sync_adapters(work, learner, backend, device, report)
    process_group.leave()


def measure_updates(
    work: Workload, counts: PolicyCounts, device: torch.device, report: Report, micro_batches: Sequence[int]
) -> None:
    """Measure updates alone, of those numbers of rows that fit."""
    name = name_of(device)
    least_s = forward_flops(work.model) / _peak(name)
    report.add("device", f"{name}, torch {torch.__version__}", model=name)
    join_alone(device)
    learner = actor(work, device)
    for rows in micro_batches:
        if device.type != "cuda" or has_room(work, counts, rows, torch.cuda.get_device_properties(device).total_memory):
            train(work, counts, learner, rows, device, report, least_s)
            if work.run.policy.compile_backend is CompileBackend.inductor:
                count_graphs(work, learner, rows, report)
    process_group.leave()


def count_graphs(work: Workload, learner: Learner, micro_batch: int, report: Report) -> None:
    """Count graphs of torch.compile, and those that an update adds whose last micro-batch has a row less."""
    before = num_graphs()
    update(learner, trajectory_of(work, 2 * micro_batch - 1))
    more = num_graphs() - before
    text = f"{before:8d} graphs, {more} more for {2 * micro_batch - 1} rows"
    report.add(f"graphs, 2 x {micro_batch} rows", text, count=before, more=more)


def num_graphs() -> int:
    """Return how many graphs torch.compile has made in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def has_room(work: Workload, counts: PolicyCounts, micro_batch: int, memory_bytes: int) -> bool:
    """Return whether an update fits by the plan's estimate, with what it holds back of the card."""
    run = replace(work.run, actor=replace(work.run.actor, micro_batch_size=micro_batch))
    run = replace(run, algorithm=replace(run.algorithm, global_batch_size=2 * micro_batch))
    return actor_memory(run, counts).peak_bytes <= (1 - HELD_BACK_SHARE) * memory_bytes - HELD_BACK_BYTES


@dataclass(frozen=True)
class Turns:
    """Measures moves between device and host memory. The first move to the host also makes the pinned memory there."""

    report: Report
    device: torch.device

    def offload(self, role: str, of: Learner | HFBackend) -> None:
        """Off the device, back, and off again. An actor goes to host memory, as do weights that are never sent."""
        _moved(self.report, f"{role} first offload", once_s(of.offload, self.device))
        of.onload()
        _moved(self.report, f"{role} offload", once_s(of.offload, self.device))

    def onload(self, role: str, of: Learner | HFBackend) -> None:
        """Back to the device."""
        _moved(self.report, f"{role} onload", once_s(of.onload, self.device))


def _passes(report: Report, name: str, rows: int, seconds: float, mfu: float, **more: float) -> None:
    text = f"{seconds:8.3f} s  {rows / seconds:8.2f} rows/s  MFU {100 * mfu:5.1f} %"
    report.add(name, text, seconds=seconds, rows_per_s=rows / seconds, mfu=mfu, **more)


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
    first_s = once_s(lambda: update(learner, batch), device)
    seconds = statistics.median(once_s(lambda: update(learner, batch), device) for _ in range(report.num_repeats))
    passes = 3 if work.run.actor.lora.rank == 0 else 2  # forward, backward; frozen weights need no gradient
    mfu = passes * least_s * rows / seconds
    planned_s = planned_seconds(work, counts, micro_batch, name_of(device))
    _passes(report, f"update, 2 x {micro_batch} rows", rows, seconds, mfu, first_s=first_s, planned_s=planned_s)
    if device.type == "cuda":
        measured, estimate = torch.cuda.max_memory_allocated(device), actor_memory(work.run, counts).peak_bytes
        text = f"{measured / 1e9:8.2f} GB, estimate {estimate / 1e9:.2f} GB"
        report.add(f"peak, 2 x {micro_batch} rows", text, bytes=measured, estimate=estimate)


def sync(learner: Learner, backend: HFBackend, device: torch.device, report: Report, offloads: bool) -> None:
    """Send weights through the memory of one node: in turns, if the rollout's copy is off the card; then resident.

    Leaves out what the card has no room for.
    """
    memory = NodeMemory(learner, device, report.num_repeats)
    try:
        if offloads:
            _sent(report, "sync in turns", memory.in_turns(backend))
            backend.onload()
        _sent(report, "sync, both resident", memory.resident(backend))
        compare(learner, backend, report, "weights that differ")
    except RunError as refusal:
        if refusal.key != "placement.offload":  # else both do not fit
            raise
    finally:
        memory.close()


def sync_adapters(work: Workload, learner: Learner, backend: HFBackend, device: torch.device, report: Report) -> None:
    """Send adapters alone, which the rollout worker merges into a copy of the weights under them."""
    work.run.placement.offload = False  # else the actor would merge
    adapted = adapted_weights(backend.policy, work.run, device)
    if adapted is None:
        return
    merging = HFBackend(backend.policy, unsent_names(backend.policy, work.run), adapted=adapted)
    base = NodeMemory(learner, device, report.num_repeats)
    base.send(merging)
    base.close()
    memory = NodeMemory(learner, device, report.num_repeats, has_base=True)
    _sent(report, "sync, adapters only", memory.resident(merging))
    memory.close()
    work.run.placement.offload = True
    compare(learner, merging, report, "weights that differ, merged by the rollout worker")


def _sent(report: Report, name: str, legs: Legs) -> None:
    report.add(name, legs.text(), **vars(legs), seconds=legs.seconds)


def compare(learner: Learner, backend: HFBackend, report: Report, name: str) -> None:
    """Count the tensors of the rollout's copy that differ from the actor's."""
    held = backend.policy.module.state_dict()
    differing = sum(not torch.equal(held[name].cpu(), sent.cpu()) for name, sent in learner.named_weights())
    report.add(name, f"{differing:8d} tensors after the sync", count=differing)


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
