"""The rollout backend on SGLang: prepares prompts and weights; the engine runs the forward pass."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.config.schema import Precision, RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.buckets import WeightStage
from rlrun.edges.observations import Observation
from rlrun.edges.weights import TensorSlice, WeightBucket
from rlrun.pipe.client import Deadline
from rlrun.policies.opening import open_unfilled
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.policies.policy import torch_dtype
from rlrun.policies.weight_files import StoredWeights
from rlrun.rollout.backend import ForwardBatch, RolloutBackend, unsent_names
from rlrun.rollout.sglang.engine import Engine, Rows, TensorBlock
from rlrun.rollout.sglang.pipe_engine import EngineStart, PipeEngine

CPU_ARGUMENTS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "disable_overlap_schedule": True,
    "max_total_tokens": 1 << 15,  # size of the key-value pool; by default SGLang derives it from GPU memory
    "mem_fraction_static": 0.5,  # with max_total_tokens only an upper limit
    "sleep_on_idle": True,
}
# Fields that an official config.json lacks and the run decides.
COMPLETED = (
    *("num_actions", "num_action_chunks", "num_images", "num_proprio", "value_hidden_sizes", "has_action_queries"),
    *("has_stop_token", "max_prompt_length", "unnorm_key", "action_bounds", "center_crop", "norm_stats"),
)
BLOCK_BYTES = 256 * 1024 * 1024
ALIGNMENT = 64
ENVIRONMENT = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "rlrun_sglang_models"}  # in plugin_path
CPU_ENVIRONMENT = {"SGLANG_PLATFORM": "rlrun_cpu"}


class SglangBackend(RolloutBackend):
    """Runs the policy of a folder through `engine`, which ends with this object or its process."""

    def __init__(self, engine: Engine, policy: VlaPolicy, unsent: Set[str]):
        """policy: on the meta device, for its names, shapes and processor. unsent: names of weights never sent.

        Raises EngineFault if the engine does not answer.
        """
        self.policy_version = -1
        self.num_actions = policy.num_actions
        self.num_proprio = policy.num_proprio
        self._processor = policy.processor
        self._num_tokens = policy.processor.config.num_action_tokens
        self._prompts: dict[str, list[int]] = {}
        shapes = {name: tuple(tensor.shape) for name, tensor in policy.module.state_dict().items()}
        self._stage = WeightStage(shapes, optional=unsent)  # checks names and shapes before the engine gets any
        # Excludes a forward pass during an update: the worker may call both from two threads.
        self._lock = threading.Lock()
        self._is_offloaded = False
        # the version that arrived while the engine was offloaded, in the sender's memory
        self._pending: tuple[TensorBlock, ...] = ()
        self._engine: Engine | None = engine
        engine.probe()

    @property
    def engine(self) -> Engine:
        """The engine. Raises RuntimeError if the backend is closed."""
        if self._engine is None:
            raise RuntimeError("the backend is closed; make a new one")
        return self._engine

    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        if self.policy_version < 0:
            raise RuntimeError("act() before the first weights; send every bucket of a policy version first")
        batch = ForwardBatch.of(observations)
        frames = batch.all_rows
        num_acting = len(batch.acting)
        prompts = [self._input_ids(instruction) for instruction in frames.instructions]
        keys = np.zeros(len(prompts), np.uint64)
        keys[:num_acting] = batch.keys
        with self._lock:
            if self._is_offloaded:
                raise RuntimeError("act() needs the engine on its accelerator; call onload() first")
            answers = self.engine.act(Rows(prompts, frames.images, frames.proprio, keys, batch.temperature))
            version = self.policy_version
        acting = answers[:num_acting]
        values = answers[:, -1]
        tokens = acting[:, : self._num_tokens].astype(np.uint8)
        logprobs = acting[:, self._num_tokens : 2 * self._num_tokens]
        actions = self._processor.decode_actions(tokens)
        return batch.chunks(actions, tokens, logprobs, values[:num_acting], values[num_acting:], version)

    def apply(self, bucket: WeightBucket) -> None:
        if self._pending and self._stage.policy_version is None:  # the sender writes the new version over them
            self._pending = ()
            self.policy_version = -1
        if not self._stage.add(bucket):
            return
        with self._lock:
            blocks = tuple(TensorBlock(b.slices, b.payload) for b in self._stage.buckets())
            if self._is_offloaded:
                self._pending = blocks
            else:
                self._update(blocks, bucket.policy_version)
            self.policy_version = bucket.policy_version
        self._stage.clear()

    def _update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        """Send weights, then probe the engine, so that a broken engine is detected now and not in the next act call."""
        self.engine.update(blocks, policy_version)
        self.engine.probe()

    def discard_staged(self) -> None:
        self._stage.clear()

    def offload(self) -> None:
        with self._lock:
            if not self._is_offloaded:
                self.engine.release()
            self._is_offloaded = True

    def onload(self, check: Callable[[WeightBucket], None] = lambda bucket: None) -> None:
        with self._lock:
            if self._is_offloaded:
                self.engine.resume()
            self._is_offloaded = False
            if self._pending:
                self._update(self._pending, self.policy_version)
            self._pending = ()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._pending = ()
        self._stage.clear()
        self.policy_version = -1

    def _input_ids(self, instruction: str) -> list[int]:
        """Return prompt tokens with placeholders for every image patch, proprioception and every action token."""
        if instruction not in self._prompts:
            config = self._processor.config
            prompt = [int(token) for token in self._processor.prompt_ids(instruction) if token >= 0]
            before = config.num_images * config.num_patches + (1 if config.num_proprio else 0)
            ids = [prompt[0], *[config.pad_token_id] * before, *prompt[1:]]
            ids += [config.pad_token_id] * config.num_action_tokens
            self._prompts[instruction] = ids + [config.stop_token_id] * config.has_stop_token
        return self._prompts[instruction]


def server_arguments(config: RunConfig, folder: Path, described: OpenVLAOFTConfig) -> dict[str, Any]:
    """Return keyword arguments of SGLang's ServerArgs. One engine uses all accelerators visible to this process."""
    num_accelerators = torch.cuda.device_count()
    settings = config.rollout.sglang
    arguments: dict[str, Any] = {
        "model_path": str(Path(folder).resolve()),
        "json_model_override_args": json.dumps({name: getattr(described, name) for name in COMPLETED}),
        "dtype": {Precision.fp32: "float32", Precision.bf16: "bfloat16"}[config.rollout.precision],
        "load_format": "dummy",  # the backend sends the weights of the folder, which may have any format
        "is_embedding": True,  # one prefill pass; tokens are sampled inside the model
        "chunked_prefill_size": -1,  # a prompt with bidirectional attention cannot be divided
        "disable_radix_cache": True,  # for the same reason prefixes cannot be cached
        "disable_cuda_graph": True,  # CUDA graphs are for decoding
        "tp_size": max(1, num_accelerators),
        "skip_tokenizer_init": True,
        "log_level": "info",
        "random_seed": config.seed,
    }
    if settings.attention_backend is not None:
        arguments["attention_backend"] = settings.attention_backend.value
    if settings.mem_fraction_static is not None:
        arguments["mem_fraction_static"] = settings.mem_fraction_static
    if num_accelerators and config.placement.offload:  # the memory saver works on GPUs only
        arguments |= {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
    if num_accelerators:  # by default SGLang takes most of the accelerator, which belongs to other roles too
        rows = -(-config.env.num_envs // config.rollout.num_workers)
        arguments["max_total_tokens"] = (rows + 1) * _tokens_per_row(described)
    else:
        arguments = CPU_ARGUMENTS | arguments
    return arguments | dict(settings.server_args)


def _tokens_per_row(described: OpenVLAOFTConfig) -> int:
    """Return the largest number of tokens of one row: BOS and prompt, patches, proprioception, actions, stop."""
    placed = described.num_images * described.num_patches + int(described.num_proprio > 0)
    return described.max_prompt_length + placed + described.num_action_tokens + int(described.has_stop_token)


def stored_blocks(weights: StoredWeights, dtype: torch.dtype) -> Iterator[TensorBlock]:
    """Yield all tensors, cast to `dtype`, in blocks of at most BLOCK_BYTES or one tensor. Closes the files."""
    slices: list[TensorSlice] = []
    parts: list[np.ndarray] = []
    end = 0
    for name in weights.in_order():
        tensor = weights.read(name).to(dtype)
        raw = _bytes(tensor)
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if slices and offset + raw.nbytes > BLOCK_BYTES:
            yield TensorBlock(tuple(slices), np.concatenate(parts))
            slices = []
            parts = []
            end = 0
            offset = 0
        slices.append(TensorSlice(name, str(dtype)[len("torch.") :], tuple(tensor.shape), offset, raw.nbytes))
        parts += [np.zeros(offset - end, np.uint8), raw]
        end = offset + raw.nbytes
    if slices:
        yield TensorBlock(tuple(slices), np.concatenate(parts))
    weights.close()


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def make_sglang(config: RunConfig, folder: Path, progress: Callable[[], None]) -> SglangBackend:
    """Make the backend. Raises RunError if policy or SGLang is missing, EngineFault if the engine does not start."""
    policy, weights = open_unfilled(folder, config)
    assert isinstance(policy, VlaPolicy)  # the only kind whose spec has this backend
    engine = make_engine(config, folder, policy.module.config, progress)
    engine.update(stored_blocks(weights, torch_dtype(config.rollout.precision)), policy_version=0)
    return SglangBackend(engine, policy, unsent_names(policy, config))


def make_engine(
    config: RunConfig, folder: Path, described: OpenVLAOFTConfig, progress: Callable[[], None] = lambda: None
) -> Engine:
    """Start an engine with dummy weights, and wait until it answers."""
    arguments = server_arguments(config, folder, described)
    is_cpu = arguments.get("device") == "cpu"
    os.environ.update(ENVIRONMENT | (CPU_ENVIRONMENT if is_cpu else {}))
    loading = Deadline(config.cluster.start_deadline_s, "cluster.start_deadline_s")
    call = Deadline(config.cluster.step_deadline_s, "cluster.step_deadline_s")
    how = EngineStart(config.rollout.sglang.python, arguments, is_cpu, loading, call, progress)
    return PipeEngine(how)
