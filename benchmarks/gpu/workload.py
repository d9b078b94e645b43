"""OpenVLA-OFT with random weights: as published, or with small layers; its rollout copy, its actor, its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.distributed as dist

from rlrun.actor import process_group
from rlrun.actor.learner import Learner
from rlrun.config.registry import fill_lora
from rlrun.config.schema import Precision, RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.trajectories import Trajectory
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.policies.compilation import chosen_backend, prepare_blocks
from rlrun.policies.openvla_oft.config import OFFICIAL_TOWERS, OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.policies.openvla_oft.processor import ImageStatistics, Processor
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.tokenizer import word_tokenizer
from rlrun.policies.weight_files import fill
from rlrun.rollout.adapted import adapted_weights
from rlrun.rollout.backend import unsent_names
from rlrun.rollout.hf import HFBackend
from rlrun.system.telemetry import Telemetry

ROBOTS = {"libero": (1, 7), "behavior": (3, 23)}  # images, action dimensions
INSTRUCTIONS = ("turn on the radio", "turn on the radio on the table")  # of different lengths
CHUNK = 8
NUM_LAYERS = 32  # of the published language model
NUM_DRAWN = 4_194_301  # a prime, so that rows of a matrix differ although the numbers repeat
_WHOLE_BODY = ("base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right")
_SMALL_TEXT = {"vocab_size": 512, "pad_token_id": 448, "hidden_size": 256, "intermediate_size": 512}
_SMALL_TOWER = {"hidden_size": 128, "num_layers": 3, "num_heads": 2, "mlp_size": 256}  # heads of 64, as kernels want


@dataclass(frozen=True)
class Workload:
    """The policy's configuration, and the run configuration around it."""

    run: RunConfig
    model: OpenVLAOFTConfig
    batches: tuple[int, ...]


def workload(
    robot: str,
    lora: int,
    micro_batch: int,
    batches: tuple[int, ...] = (1,),
    is_small: bool = False,
    num_layers: int = NUM_LAYERS,
) -> Workload:
    """Return the configuration of the policy on one rank: bf16, with float32 state of trained parameters.

    is_small: layers of which a processor computes a pass in a tenth of a second. num_layers: of the language model; all
    weights of the whole one can only be trained on one card if the optimizer's state is bf16.
    """
    num_images, num_actions = ROBOTS[robot]
    run = RunConfig()
    run.policy.path, run.policy.num_action_chunks, run.policy.use_proprio = "random weights", CHUNK, False
    own = OpenVLAOFTSettings(max_prompt_length=50, has_action_queries=False)
    run.policy.value_hidden_sizes, run.policy.sections = [512, 128], {"openvla_oft": own}
    parts = ["arm_right"] if num_actions == 7 else list(_WHOLE_BODY)
    world = EmbeddedConfig(cameras=[f"camera_{i}" for i in range(num_images)], controlled=parts)
    run.env.image_size, run.env.sections = 224, {"embedded": world}
    run.actor.num_workers, run.actor.micro_batch_size = 1, micro_batch
    run.actor.param_precision = run.actor.reduce_precision = run.rollout.precision = Precision.bf16
    run.actor.optimizer_precision = Precision.fp32 if lora or num_layers < NUM_LAYERS else Precision.bf16
    run.actor.activation_checkpointing, run.actor.lora.rank = True, lora
    fill_lora(run)
    run.algorithm.global_batch_size, run.algorithm.update_epochs, run.algorithm.target_kl = 2 * micro_batch, 1, None
    return Workload(run, _model_config(run, num_actions, is_small, num_layers), batches)


def _model_config(run: RunConfig, num_actions: int, is_small: bool, num_layers: int) -> OpenVLAOFTConfig:
    bounds = {"q01": [-1.0] * num_actions, "q99": [1.0] * num_actions, "mask": [True] * num_actions}
    shapes = {"text_config": {"vocab_size": 32064, "pad_token_id": 32000, "num_hidden_layers": num_layers}}
    if is_small:
        text = _SMALL_TEXT | {"num_hidden_layers": 2, "num_attention_heads": 4}
        towers = [tower | _SMALL_TOWER for tower in OFFICIAL_TOWERS]
        shapes = {"text_config": text, "vision_towers": towers, "image_sizes": [56, 56], "pad_token_id": 448}
    return OpenVLAOFTConfig(
        **shapes,
        norm_stats={"rlrun": {"action": bounds}},
        unnorm_key="rlrun",
        num_actions=num_actions,
        num_action_chunks=CHUNK,
        num_images=len(run.env.section(EmbeddedConfig).cameras),
        value_hidden_sizes=list(run.policy.value_hidden_sizes),
        has_stop_token=False,
        space_token_id=3,  # of the tokenizer below, whose few words stand for Llama's
    )


class RandomWeights:
    """Replaces a policy folder: the same numbers for every model of the same shapes, in seconds.

    They are drawn once on the CPU and repeated on `device`. Matrices keep the size of what they are applied to.
    """

    seed = 0

    def __init__(self, model: OpenVLAOFT, device: torch.device):
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._drawn = _normals().to(device)

    def in_order(self) -> Iterator[str]:
        """Yield every name."""
        yield from self._shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows start..stop of the first axis, in bfloat16."""
        shape = self._shapes[name]
        if not shape:
            return torch.zeros((), device=self._drawn.device)
        width = int(np.prod(shape[1:], dtype=np.int64))
        rows = len(range(*slice(start, stop).indices(shape[0])))
        numbers = self._from(start * width % NUM_DRAWN, rows * width).view(rows, *shape[1:])
        if len(shape) > 1:
            return numbers * width**-0.5
        return 0.02 * numbers + float(not name.endswith("bias"))  # norms and scales of layers are near 1

    def close(self) -> None:
        """Free nothing: there is no file."""

    def _from(self, start: int, count: int) -> torch.Tensor:
        times = -(-(start + count) // NUM_DRAWN)
        return (self._drawn.repeat(times) if times > 1 else self._drawn)[start : start + count]


@cache
def _normals() -> torch.Tensor:
    return torch.randn(NUM_DRAWN, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def policy(work: Workload) -> VlaPolicy:
    """Return the policy on the meta device."""
    with torch.device("meta"):
        model = OpenVLAOFT(work.model)
    return VlaPolicy(model, Processor(work.model, word_tokenizer(list(INSTRUCTIONS)), ImageStatistics()))


def filled_policy(work: Workload, device: torch.device, dtype: torch.dtype) -> VlaPolicy:
    """Return the policy with its weights on `device`, with the asked kernels and compiler."""
    made = policy(work)
    made.module.to(dtype)
    fill(made.module, RandomWeights(made.module, device), device)
    filled = VlaPolicy(made.module, made.processor)
    precision = Precision.bf16 if dtype is torch.bfloat16 else Precision.fp32
    filled.use_attention(work.run.policy.attention, precision)
    prepare_blocks(filled, chosen_backend(work.run.policy.compile_backend, device, is_learner=False))
    return filled


def rollout(work: Workload, device: torch.device) -> HFBackend:
    """Return a rollout worker's copy in bf16."""
    filled = filled_policy(work, device, torch.bfloat16)
    backend = HFBackend(filled, unsent_names(filled, work.run), adapted=adapted_weights(filled, work.run, device))
    backend.policy_version = 0
    return backend


def join_alone(device: torch.device) -> None:
    """Form the process group of one rank: NCCL for a card where this torch has it, else Gloo."""
    planned = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    process_group.join(0, 1, "127.0.0.1", 0, process_group.torch_backend(planned, device), 60.0)


def actor(work: Workload, device: torch.device) -> Learner:
    """Return the learner of a single rank, which holds all shards. `join_alone` must have been called."""
    made = policy(work)
    weights = RandomWeights(made.module, torch.device("cpu") if work.run.actor.cpu_offload else device)
    if work.run.actor.lora.rank:
        from rlrun.policies.adapters import add_adapters

        add_adapters(made.module, work.run.actor.lora, made.frozen_names())
    return Learner(work.run, made, 0, 1, device, Telemetry("actor/0"), weights=weights)


def observation_of(work: Workload, rows: int, instructions: tuple[str, ...] = INSTRUCTIONS[:1]) -> Observation:
    """Return random frames; the instructions are taken in turn."""
    side = work.model.image_sizes[0]
    images = np.random.default_rng(0).integers(0, 256, (rows, work.model.num_images, side, side, 3), dtype=np.uint8)
    proprio = np.zeros((rows, work.model.num_proprio), np.float32)
    frames = Frames(images, proprio, tuple(instructions[row % len(instructions)] for row in range(rows)))
    return Observation(0, frames, np.arange(rows, dtype=np.uint64), 1.0, None)


def trajectory_of(work: Workload, rows: int, acted: ActionChunk | None = None) -> Trajectory:
    """Return one chunk step of `rows` envs with random rewards.

    acted: the answer to `observation_of` of as many rows; None: random tokens, all equally likely.
    """
    draw = np.random.default_rng(1)
    frames, tokens = observation_of(work, rows).frames, work.model.num_action_tokens
    ones, no = np.ones((1, rows), bool), np.zeros((1, rows), bool)
    normal = lambda *shape: draw.standard_normal(shape).astype(np.float32)  # noqa: E731
    chosen = draw.integers(0, 256, (rows, tokens)).astype(np.uint8) if acted is None else acted.tokens
    logprobs = np.full((rows, tokens), -np.log(256), np.float32) if acted is None else acted.logprobs
    return Trajectory(
        images=frames.images[None],
        proprio=frames.proprio[None],
        instructions=INSTRUCTIONS[:1],
        instruction_index=np.zeros((1, rows), np.int16),
        tokens=chosen[None],
        logprobs=logprobs[None],
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
