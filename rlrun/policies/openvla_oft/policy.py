"""OpenVLA-OFT behind the policy interface: from images, an instruction and proprioception to action bins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from rlrun.algorithms.losses import imitation_loss
from rlrun.config.schema import AttentionKernel, EnvConfig, LoraConfig, PolicyConfig, Precision, RunConfig, SftConfig
from rlrun.policies.distributions import Bins
from rlrun.policies.openvla_oft.attention import chosen_kernel
from rlrun.policies.openvla_oft.checkpoint import find_policy, load_policy, save_policy
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.processor import ImageStatistics, Processor
from rlrun.policies.openvla_oft.settings import NUM_BINS, OpenVLAOFTSettings
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import SPACE, prompt, word_tokenizer
from rlrun.policies.weight_files import StoredWeights, fill


class VlaPolicy(ImitationPolicy):
    """The policy of `model` and its processor; K tokens of 256 bins."""

    module: OpenVLAOFT

    def __init__(self, model: OpenVLAOFT, processor: Processor):
        self.module, self.processor = model, processor
        self.device = model.device
        self.num_actions, self.num_proprio = model.config.num_actions, model.config.num_proprio
        self.num_action_chunks = model.config.num_action_chunks

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[Bins, Tensor | None]:
        pixels = torch.from_numpy(images).to(self.device)
        inputs = self.processor(pixels, instructions, proprio, self.device, self.module.dtype)
        output = self.module(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
        return Bins(output.action_logits, temperature), output.value

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = torch.as_tensor(self.processor.encode_actions(actions)).flatten(1).to(self.device)
        mask = torch.from_numpy(step_valid).repeat_interleave(self.num_actions, dim=-1).to(self.device)
        distribution, _ = self(images, instructions, proprio, temperature=1.0)
        return imitation_loss(distribution.logits, tokens, mask, settings.label_smoothing_bins)

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        return self.processor.decode_actions(tokens)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        save_policy(folder, self.module, self.processor, named_tensors)

    def use_attention(self, asked: AttentionKernel | None, precision: Precision) -> None:
        self.module.use_attention(chosen_kernel(asked, self.device, precision))

    def stacks(self) -> list[list[nn.Module]]:
        return self.module.stacks()

    def frozen_names(self) -> set[str]:
        return self.module.frozen_names()


def open_vla(folder: Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None) -> VlaPolicy:
    """Open the whole policy on `device`."""
    return VlaPolicy(*load_policy(folder, dtype, device, run))


def open_vla_to_shard(folder: Path, run: RunConfig) -> tuple[VlaPolicy, StoredWeights]:
    """Open without memory, with the adapters of `actor.lora` if any, and with the weights that fill its shards."""
    stored = find_policy(folder, run)
    policy = VlaPolicy(stored.without_memory(), stored.processor)
    if run.actor.lora.rank:
        _add_adapters(policy, run.actor.lora)
    return policy, stored.weights


def open_vla_with_adapters(folder: Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig) -> VlaPolicy:
    """Open the whole policy on `device`, with adapters that change nothing until the first weights arrive."""
    stored = find_policy(folder, run)
    policy = VlaPolicy(stored.without_memory(), stored.processor)
    _add_adapters(policy, run.actor.lora)
    module: nn.Module = policy.module
    fill(module.to(dtype), stored.weights, device)
    policy.device = torch.device(device)
    return policy


def _add_adapters(policy: VlaPolicy, lora: LoraConfig) -> None:
    from rlrun.policies.adapters import add_adapters  # importing peft takes seconds

    add_adapters(policy, lora)


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
