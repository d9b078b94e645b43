"""SGLang's server arguments for one rollout worker, from the needs of OpenVLA-OFT and from the placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from rlrun.config.schema import Precision, RunConfig
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig

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


def server_arguments(config: RunConfig, folder: Path, described: OpenVLAOFTConfig) -> dict[str, Any]:
    """Return keyword arguments of SGLang's ServerArgs. One engine uses all accelerators visible to this process."""
    num_accelerators = torch.cuda.device_count()
    own = config.rollout.sglang
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
    if own.attention_backend is not None:
        arguments["attention_backend"] = own.attention_backend.value
    if own.mem_fraction_static is not None:
        arguments["mem_fraction_static"] = own.mem_fraction_static
    if num_accelerators and config.placement.offload:  # the memory saver works on GPUs only
        arguments |= {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
    if num_accelerators:  # by default SGLang takes most of the accelerator, which belongs to other roles too
        rows = -(-config.env.num_envs // config.rollout.num_workers)
        arguments["max_total_tokens"] = (rows + 1) * _tokens_per_row(described)
    else:
        arguments = CPU_ARGUMENTS | arguments
    return arguments | dict(own.server_args)


def _tokens_per_row(described: OpenVLAOFTConfig) -> int:
    """Return the largest number of tokens of one row: BOS and prompt, patches, proprioception, actions, stop."""
    placed = described.num_images * described.num_patches + int(described.num_proprio > 0)
    return described.max_prompt_length + placed + described.num_action_tokens + int(described.has_stop_token)
