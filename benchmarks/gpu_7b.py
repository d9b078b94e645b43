"""OpenVLA-OFT at 7.5 billion parameters on one GPU: `python -m benchmarks.gpu_7b [--robot libero] [--lora 32] …`.

Prints first what the plan's memory model and the meta device say, which needs no GPU, then measures the same with
random weights: act() by batch, an update, MFU of both, weight sync, moves between device and host, peak memory beside
the estimate. Without a GPU it says so, after the estimates, and ends with status 4.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rlrun.actor import process_group
from rlrun.actor.learner import Learner
from rlrun.config.schema import Precision, RunConfig
from rlrun.data.messages import Frames, Observation, Trajectory
from rlrun.observability.telemetry import Telemetry
from rlrun.placement.actor_memory import actor_memory
from rlrun.placement.compute_time import peak_flops
from rlrun.placement.policy_size import policy_size
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.policies.openvla_oft.settings import OpenVLAOFTSettings
from rlrun.policies.processor import ImageStatistics, Processor
from rlrun.policies.size import PolicySize
from rlrun.policies.stored_weights import fill
from rlrun.policies.tokenizer import word_tokenizer
from rlrun.rollout.hf import HFBackend
from rlrun.system.exit_status import ExitStatus
from rlrun.weight_sync.buckets import lay_out, pack

PARAMETERS = 7_541_237_184
REPEATS = 5
ROBOTS = {"libero": (1, 7), "behavior": (3, 23)}  # images, action dimensions
INSTRUCTION = "turn on the radio"
CHUNK = 8


@dataclass(frozen=True)
class Workload:
    """What is measured: the policy's configuration, and a run around it."""

    run: RunConfig
    model: OpenVLAOFTConfig
    batches: tuple[int, ...]


class RandomWeights:
    """In place of a policy folder: every tensor exists, and its rows are drawn when they are read."""

    seed = 0

    def __init__(self, model: OpenVLAOFT):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}

    def in_order(self) -> Iterator[str]:
        yield from self._shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        shape = self._shapes[name]
        rows = len(range(*slice(start, stop).indices(shape[0]))) if shape else 0
        return 0.02 * torch.randn((rows, *shape[1:])) if shape else torch.zeros(())

    def close(self) -> None:
        pass


def main() -> int:
    """Estimates, then measurements where there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robot", choices=ROBOTS, default="behavior")
    parser.add_argument("--lora", type=int, default=32, help="rank of the adapters; 0 trains all weights")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    arguments = parser.parse_args()
    work = workload(arguments.robot, arguments.lora, arguments.micro_batch, tuple(arguments.batches))
    size = policy_size(work.run, PARAMETERS)
    estimates(work, size)
    if not torch.cuda.is_available():
        print("\nNo GPU: torch sees none here, so nothing was measured. The numbers above are estimates.")
        return int(ExitStatus.doctor)
    measure(work, size, torch.device("cuda"))
    return int(ExitStatus.ok)


def workload(robot: str, lora: int, micro_batch: int, batches: tuple[int, ...]) -> Workload:
    """The published policy on one rank; bf16, with float32 state for what trains."""
    num_images, num_actions = ROBOTS[robot]
    run = RunConfig()
    run.policy.path, run.policy.num_action_chunks, run.policy.use_proprio = "random weights", CHUNK, False
    own = OpenVLAOFTSettings(max_prompt_length=50, has_action_queries=False)
    run.policy.value_hidden_sizes, run.policy.sections = [512, 128], {"openvla_oft": own}
    run.env.image_size, run.env.cameras = 224, [f"camera_{i}" for i in range(num_images)]
    run.env.controlled = ["arm_right"] if num_actions == 7 else list(_WHOLE_BODY)
    run.actor.num_workers, run.actor.micro_batch_size = 1, micro_batch
    run.actor.param_precision = run.actor.reduce_precision = run.rollout.precision = Precision.bf16
    run.actor.optimizer_precision = Precision.fp32 if lora else Precision.bf16
    run.actor.activation_checkpointing, run.actor.lora.rank = True, lora
    run.algorithm.global_batch_size, run.algorithm.update_epochs, run.algorithm.target_kl = 2 * micro_batch, 1, None
    return Workload(run, _model_config(run, num_actions), batches)


_WHOLE_BODY = ("base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right")


def _model_config(run: RunConfig, num_actions: int) -> OpenVLAOFTConfig:
    bounds = {"q01": [-1.0] * num_actions, "q99": [1.0] * num_actions, "mask": [True] * num_actions}
    return OpenVLAOFTConfig(
        text_config={"vocab_size": 32064, "pad_token_id": 32000},
        norm_stats={"rlrun": {"action": bounds}},
        unnorm_key="rlrun",
        num_actions=num_actions,
        num_action_chunks=CHUNK,
        num_images=len(run.env.cameras),
        value_hidden_sizes=list(run.policy.value_hidden_sizes),
        has_stop_token=False,
        space_token_id=3,  # of the tokenizer below, whose few words stand for Llama's
    )


# --- without a GPU ---------------------------------------------------------------------------


def estimates(work: Workload, size: PolicySize) -> None:
    """Memory by the plan's model, floating-point operations counted on the meta device."""
    memory = actor_memory(work.run, size)
    forward = forward_flops(work.model)
    print(f"{size.all_parameters / 1e9:.3f} G parameters, {size.stacks[-1].num_tokens} tokens a row")
    print(f"{'forward pass':<22} {forward / 1e12:8.2f} TFLOP a row (meta device)")
    for name, amount in memory.parts().items():
        print(f"{'update: ' + name:<22} {amount / 1e9:8.2f} GB")
    print(f"{'update: peak':<22} {memory.peak_bytes / 1e9:8.2f} GB")
    print(f"{'rollout copy':<22} {2 * size.all_parameters / 1e9:8.2f} GB")


def forward_flops(config: OpenVLAOFTConfig) -> int:
    """Of one row, matrix products only."""
    from torch.utils.flop_counter import FlopCounterMode

    height, width = config.image_sizes
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        pixels = torch.zeros(1, 6 * config.num_images, height, width)
        proprio = torch.zeros(1, config.num_proprio) if config.num_proprio else None
        OpenVLAOFT(config)(torch.zeros(1, 50, dtype=torch.long), None, pixels, proprio)
    return counter.get_total_flops()


# --- with one --------------------------------------------------------------------------------


def measure(work: Workload, size: PolicySize, device: torch.device) -> None:
    """Rollout first, then the actor, then both, as roles that take turns have the device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    flops, peak = forward_flops(work.model), peak_flops(name) or float("nan")
    print(f"\n{name}, torch {torch.__version__}")
    backend = rollout(work, device)
    for rows in work.batches:
        observation = observation_of(work, rows)
        seconds = median_s(lambda observation=observation: backend.act([observation]), device)
        told = f"{rows / seconds:8.2f} rows/s  MFU {100 * flops * rows / seconds / peak:5.1f} %"
        print(f"{f'act, {rows} rows':<22} {seconds:8.3f} s  {told}")
    print(f"{'rollout parks':<22} {once_s(backend.park, device):8.3f} s")
    print(f"{'rollout returns':<22} {once_s(backend.bring, device):8.3f} s")
    backend.offload()
    learner = actor(work, device)
    train(work, size, learner, device, flops, peak)
    sync(learner, backend, device)
    print(f"{'actor parks':<22} {once_s(learner.park, device):8.3f} s")
    print(f"{'actor returns':<22} {once_s(learner.bring, device):8.3f} s")
    process_group.leave()


def train(work: Workload, size: PolicySize, learner: Learner, device: torch.device, flops: int, peak: float) -> None:
    """One update of two micro-batches, and the memory that it took beside the estimate."""
    rows = work.run.algorithm.global_batch_size
    batch = trajectory_of(work, rows)
    learner.update(batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = median_s(lambda: learner.update(batch), device)
    passes = 3 if work.run.actor.lora.rank == 0 else 2  # forward, backward; frozen weights need no gradient
    told = f"{rows / seconds:8.2f} rows/s  MFU {100 * passes * flops * rows / seconds / peak:5.1f} %"
    print(f"{f'update, {rows} rows':<22} {seconds:8.3f} s  {told}")
    if device.type == "cuda":
        measured, estimate = torch.cuda.max_memory_allocated(device), actor_memory(work.run, size).peak_bytes
        print(f"{'peak of the update':<22} {measured / 1e9:8.2f} GB, estimate {estimate / 1e9:.2f} GB", end="")
        print(f" ({100 * (estimate / measured - 1):+.1f} %)")


def sync(learner: Learner, backend: HFBackend, device: torch.device) -> None:
    """Every bucket of one policy version, gathered, packed and applied in one process."""
    layout = lay_out(learner.weight_layout(), 256 * 1024**2, torch.bfloat16)
    started = time.monotonic()
    for bucket in pack(learner.named_weights(), layout, 1):
        backend.apply(bucket)
    _finish(device)
    seconds = time.monotonic() - started
    gigabytes = layout.num_bytes / 1e9
    print(f"{'weight sync':<22} {seconds:8.3f} s  {gigabytes:.2f} GB, {gigabytes / seconds:.2f} GB/s")


def policy(work: Workload) -> VlaPolicy:
    """On the meta device."""
    with torch.device("meta"):
        model = OpenVLAOFT(work.model)
    return VlaPolicy(model, Processor(work.model, word_tokenizer([INSTRUCTION]), ImageStatistics()))


def rollout(work: Workload, device: torch.device) -> HFBackend:
    """A rollout worker's copy, in bf16."""
    from rlrun.rollout.unsent_weights import unsent_names

    made = policy(work)
    unsent = unsent_names(made, work.run)
    made.module.to(torch.bfloat16)
    fill(made.module, RandomWeights(made.module), device)
    backend = HFBackend(VlaPolicy(made.module, made.processor), unsent)
    backend.policy_version = 0
    return backend


def actor(work: Workload, device: torch.device) -> Learner:
    """One rank, whose shards are everything."""
    made = policy(work)
    weights = RandomWeights(made.module)
    if work.run.actor.lora.rank:
        from rlrun.policies.adapters import add_adapters

        add_adapters(made, work.run.actor.lora)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    process_group.join(0, 1, "127.0.0.1", 0, backend, 60.0)
    return Learner(work.run, made, 0, 1, device, Telemetry("actor/0"), weights=weights)


def observation_of(work: Workload, rows: int) -> Observation:
    """Random frames."""
    side = work.model.image_sizes[0]
    images = np.random.default_rng(0).integers(0, 256, (rows, work.model.num_images, side, side, 3), dtype=np.uint8)
    frames = Frames(images, np.zeros((rows, work.model.num_proprio), np.float32), (INSTRUCTION,) * rows)
    return Observation(0, frames, np.arange(rows, dtype=np.uint64), 1.0, None)


def trajectory_of(work: Workload, rows: int) -> Trajectory:
    """One chunk step of `rows` envs, of random content."""
    draw = np.random.default_rng(1)
    frames, tokens = observation_of(work, rows).frames, work.model.num_action_tokens
    ones, no = np.ones((1, rows), bool), np.zeros((1, rows), bool)
    normal = lambda *shape: draw.standard_normal(shape).astype(np.float32)  # noqa: E731
    return Trajectory(
        images=frames.images[None],
        proprio=frames.proprio[None],
        instructions=(INSTRUCTION,),
        instruction_index=np.zeros((1, rows), np.int16),
        tokens=draw.integers(0, 256, (1, rows, tokens)).astype(np.uint8),
        logprobs=np.full((1, rows, tokens), -np.log(256), np.float32),
        values=normal(1, rows),
        next_values=normal(1, rows),
        rewards=normal(1, rows, CHUNK),
        step_valid=np.ones((1, rows, CHUNK), bool),
        terminated=no,
        truncated=no,
        valid=ones,
        group=np.zeros(rows, np.int32),
        policy_version=np.zeros((1, rows), np.int32),
    )


def median_s(work: Callable[[], object], device: torch.device) -> float:
    """Median wall seconds of a call, after a warm-up."""
    work()
    return statistics.median(once_s(work, device) for _ in range(REPEATS))


def once_s(work: Callable[[], object], device: torch.device) -> float:
    """Wall seconds of one call, until the device is done."""
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
