"""A small policy from scratch: the same class as the 7B model, with the sizes of PolicyConfig."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from rlrun.config.schema import EnvConfig, PolicyConfig
from rlrun.config.simulator_spec import num_cameras
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.processor import ImageStatistics, Processor
from rlrun.policies.tokenizer import SPACE, prompt, word_tokenizer

NUM_BINS = 256
MLP_RATIO = 4  # of the vision towers


def new_policy(
    policy: PolicyConfig,
    env: EnvConfig,
    num_actions: int,
    num_proprio: int,
    norm_stats: dict,
    instructions: Sequence[str],
    seed: int,
) -> tuple[OpenVLAOFT, Processor]:
    """Model in float32 on the CPU and its processor; the same arguments give the same weights.

    norm_stats: {"action": {"q01": [A], "q99": [A], "min", "max", "mask"}, "proprio": {...}}, kept under
    `policy.unnorm_key`. instructions: every sentence the policy will be told; their words are its vocabulary.
    Raises ValueError where the statistics have other dimensions.
    """
    tokenizer = word_tokenizer(instructions)
    longest = max(len(tokenizer.encode(prompt(text)).ids) for text in instructions) + 1  # the space at the end
    num_words = tokenizer.get_vocab_size()
    config = OpenVLAOFTConfig(
        text_config=_text_config(policy, num_words + NUM_BINS + 1),
        image_sizes=[env.image_size, env.image_size],
        vision_towers=_towers(policy),
        patch_size=policy.patch_size,
        norm_stats={policy.unnorm_key: norm_stats},
        pad_token_id=num_words + NUM_BINS,
        pad_to_multiple_of=1,
        bos_token_id=_token_id(tokenizer, "<s>"),
        stop_token_id=_token_id(tokenizer, "</s>"),
        space_token_id=_token_id(tokenizer, SPACE),
        num_actions=num_actions,
        num_action_chunks=policy.num_action_chunks,
        num_images=num_cameras(env),
        num_proprio=num_proprio if policy.use_proprio else 0,
        value_hidden_sizes=list(policy.value_hidden_sizes),
        has_action_queries=policy.has_action_queries,
        has_stop_token=policy.has_stop_token,
        max_prompt_length=policy.max_prompt_length or longest,
        unnorm_key=policy.unnorm_key,
        action_bounds=policy.action_bounds.value,
        center_crop=policy.center_crop,
    )
    processor = Processor(config, tokenizer, ImageStatistics())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OpenVLAOFT(config), processor


def _text_config(policy: PolicyConfig, vocab_size: int) -> dict:
    return {
        "vocab_size": vocab_size,
        "pad_token_id": vocab_size - 1,
        "hidden_size": policy.llm_hidden_size,
        "intermediate_size": policy.llm_intermediate_size,
        "num_hidden_layers": policy.llm_num_layers,
        "num_attention_heads": policy.llm_num_heads,
        "initializer_range": policy.llm_hidden_size**-0.5,
    }


def _towers(policy: PolicyConfig) -> list[dict]:
    """DINOv2-like and SigLIP-like; one layer more than is run, as the official towers have it."""
    width = policy.vision_hidden_size
    shape = {
        "hidden_size": width,
        "num_layers": policy.vision_num_layers,
        "num_heads": policy.vision_num_heads,
        "mlp_size": MLP_RATIO * width,
    }
    first = shape | {"has_class_token": True, "num_register_tokens": 1, "has_layer_scale": True}
    return [first, shape]


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    """Raises ValueError where the tokenizer lacks the token."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}")
    return found
