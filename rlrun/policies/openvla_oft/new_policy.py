"""A small policy from scratch: the same class as the 7B model, with the sizes of policy.openvla_oft."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from rlrun.config.schema import EnvConfig, PolicyConfig
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.settings import OpenVLAOFTSettings
from rlrun.policies.openvla_oft.size import NUM_BINS
from rlrun.policies.processor import ImageStatistics, Processor
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import SPACE, prompt, word_tokenizer

MLP_RATIO = 4  # of the vision towers


def new_policy(
    policy: PolicyConfig,
    env: EnvConfig,
    task: DemonstratedTask,
    seed: int,
) -> tuple[OpenVLAOFT, Processor]:
    """Return the model, float32 on the CPU, and its processor; the same arguments give the same weights.

    The statistics of `task` are stored under `policy.openvla_oft.unnorm_key`; its vocabulary is the words of the
    task's instructions, which are all the policy will get. Raises ValueError if the statistics have other
    dimensions.
    """
    own, instructions = policy.section(OpenVLAOFTSettings), task.instructions
    tokenizer = word_tokenizer(instructions)
    longest = max(len(tokenizer.encode(prompt(text)).ids) for text in instructions) + 1  # 1 for the space at the end
    num_words = tokenizer.get_vocab_size()
    config = OpenVLAOFTConfig(
        text_config=_text_config(own, num_words + NUM_BINS + 1),
        image_sizes=[env.image_size, env.image_size],
        vision_towers=_towers(own),
        patch_size=own.patch_size,
        norm_stats={own.unnorm_key: task.norm_stats},
        pad_token_id=num_words + NUM_BINS,
        pad_to_multiple_of=1,
        bos_token_id=_token_id(tokenizer, "<s>"),
        stop_token_id=_token_id(tokenizer, "</s>"),
        space_token_id=_token_id(tokenizer, SPACE),
        num_actions=task.num_actions,
        num_action_chunks=policy.num_action_chunks,
        num_images=len(task.cameras),
        camera_names=list(task.cameras),
        num_proprio=task.num_proprio if policy.use_proprio else 0,
        value_hidden_sizes=list(policy.value_hidden_sizes),
        has_action_queries=own.has_action_queries,
        has_stop_token=own.has_stop_token,
        max_prompt_length=own.max_prompt_length or longest,
        unnorm_key=own.unnorm_key,
        action_bounds=own.action_bounds.value,
        center_crop=own.center_crop,
    )
    processor = Processor(config, tokenizer, ImageStatistics())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OpenVLAOFT(config), processor


def _text_config(own: OpenVLAOFTSettings, vocab_size: int) -> dict:
    return {
        "vocab_size": vocab_size,
        "pad_token_id": vocab_size - 1,
        "hidden_size": own.llm_hidden_size,
        "intermediate_size": own.llm_intermediate_size,
        "num_hidden_layers": own.llm_num_layers,
        "num_attention_heads": own.llm_num_heads,
        "initializer_range": own.llm_hidden_size**-0.5,
    }


def _towers(own: OpenVLAOFTSettings) -> list[dict]:
    """Return towers like DINOv2 and SigLIP, with one more layer than is run, as the official towers have."""
    width = own.vision_hidden_size
    shape = {
        "hidden_size": width,
        "num_layers": own.vision_num_layers,
        "num_heads": own.vision_num_heads,
        "mlp_size": MLP_RATIO * width,
    }
    first = shape | {"has_class_token": True, "num_register_tokens": 1, "has_layer_scale": True}
    return [first, shape]


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token. Raises ValueError if the tokenizer lacks it."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}")
    return found
