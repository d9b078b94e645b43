"""OpenVLA-OFT for SGLang: one prefill pass in embedding mode, from raw frames to sampled tokens and a value.

Requests are packed without padding; SGLang applies bidirectional attention within each request.
Shape legend: B requests, S_b tokens of request b, N images, P proprioception, K action tokens, D width, V = 256 bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.pooler import EmbeddingPoolerOutput
from sglang.srt.layers.quantization.base_config import QuantizationConfig
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputs, MultimodalProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models.llama import LlamaModel
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from rlrun.policies.distributions import Bins, ValueHead, linear_in_float32
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import ActionQueries, Projector, ProprioProjector, VisionBackbone
from rlrun.policies.openvla_oft.processor import Processor
from rlrun.rollout.sglang.engine import Row

LM = "language_model."
HEAD = "language_model.lm_head.weight"
STACKED = (  # SGLang's fused parameter, the official one, the part of the fused one
    (".qkv_proj", ".q_proj", "q"),
    (".qkv_proj", ".k_proj", "k"),
    (".qkv_proj", ".v_proj", "v"),
    (".gate_up_proj", ".gate_proj", 0),
    (".gate_up_proj", ".up_proj", 1),
)


class LanguageModel(nn.Module):
    """SGLang's Llama with bidirectional attention, and the rows of the output layer for action bins."""

    def __init__(self, config: OpenVLAOFTConfig, quant_config: QuantizationConfig | None, prefix: str):
        super().__init__()
        self.model = LlamaModel(config.text_config, quant_config, prefix=f"{prefix}model")
        for layer in self.model.layers:
            layer.self_attn.attn.attn_type = AttentionType.ENCODER_ONLY
        # 256 rows are too few to split over the ranks of a group: each rank has all of them
        self.bins = nn.Parameter(torch.empty(config.n_action_bins, config.text_config.hidden_size), requires_grad=False)


class OpenVLAForActionPrediction(nn.Module):
    """The policy. A tensor-parallel group splits the Llama; each rank has whole vision towers, projectors and heads."""

    def __init__(self, config: OpenVLAOFTConfig, quant_config: QuantizationConfig | None = None, prefix: str = ""):
        super().__init__()
        self.config = config
        shapes = config.tower_shapes
        width = config.text_config.hidden_size
        self.vision_backbone = VisionBackbone(shapes, config.patch_size, config.num_patches)
        self.projector = Projector(sum(shape.hidden_size for shape in shapes), width)
        self.language_model = LanguageModel(config, quant_config, f"{prefix}{LM}")
        self.proprio_projector = ProprioProjector(config.num_proprio, width) if config.num_proprio else None
        self.action_queries = ActionQueries(config.num_action_tokens, width) if config.has_action_queries else None
        self.value_head = ValueHead(width, config.value_hidden_sizes) if config.value_hidden_sizes else None
        self.requires_grad_(False)
        self._processor = Processor.load(Path(str(config.name_or_path)), config)

    def pad_input_ids(self, input_ids: list[int], _: MultimodalInputs) -> list[int]:
        """Return the ids unchanged: they already contain placeholders."""
        return input_ids

    @torch.no_grad()
    def forward(
        self, input_ids: Tensor, positions: Tensor, forward_batch: ForwardBatch, *_: Any, **__: Any
    ) -> EmbeddingPoolerOutput:
        """Return float32 [B, 2K+1]: tokens, their log-probabilities, value; zeros for a request without images.

        Requests without images are SGLang's own: warm-up and health probes of one token.
        """
        lengths = list(forward_batch.extend_seq_lens_cpu)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        media = forward_batch.mm_inputs or [None] * len(lengths)
        asked = [index for index, inputs in enumerate(media) if inputs is not None and inputs.mm_items]
        items = [media[index].mm_items[0] for index in asked]
        embeds = self.language_model.model.embed_tokens(input_ids.clamp(0, self.config.text_config.vocab_size - 1))
        if asked:
            self._place(embeds, items, [starts[index] for index in asked], [lengths[index] for index in asked])
        hidden = self.language_model.model(input_ids, positions, forward_batch, input_embeds=embeds)
        answers = hidden.new_zeros(len(lengths), 2 * self.config.num_action_tokens + 1, dtype=torch.float32)
        if asked:
            ends = [starts[index] + lengths[index] for index in asked]
            answers[asked] = self._choose(hidden, items, ends)
        return EmbeddingPoolerOutput(embeddings=answers)

    def _place(self, embeds: Tensor, items: list[MultimodalDataItem], starts: list[int], lengths: list[int]) -> None:
        """Write embeddings of frames, proprioception and action placeholders between BOS and prompt, and at the end."""
        device = embeds.device
        dtype = embeds.dtype
        pixels = self._processor.pixels(torch.stack([item.feature for item in items]).to(device), dtype)
        height, width = self.config.image_sizes
        patches = self.projector(self.vision_backbone(pixels.reshape(-1, 6, height, width)))
        placed = [patches.reshape(len(items), -1, embeds.shape[-1])]
        if self.proprio_projector is not None:
            state = self._processor.state(torch.stack([item.proprio for item in items]), len(items))
            assert state is not None
            placed.append(self.proprio_projector(state.to(device, dtype)))
        before = torch.cat(placed, dim=1)
        after = self.config.num_action_tokens
        queries = embeds.new_zeros(after, embeds.shape[-1])
        if self.action_queries is not None:
            (queries,) = self.action_queries(1)
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            end = start + length - int(self.config.has_stop_token)
            embeds[start + 1 : start + 1 + before.shape[1]] = before[row]
            embeds[end - after : end] = queries

    def _choose(self, hidden: Tensor, items: list[MultimodalDataItem], ends: list[int]) -> Tensor:
        """Return float32 [rows, 2K+1] from the hidden states [sum of lengths, D]."""
        num_tokens = self.config.num_action_tokens
        # the last prompt token predicts the first action token
        first = torch.tensor(ends, device=hidden.device) - int(self.config.has_stop_token) - num_tokens - 1
        taken = hidden[first[:, None] + torch.arange(num_tokens, device=hidden.device)]
        logits = linear_in_float32(taken, self.language_model.bins)
        tokens, logprobs = self._sample(logits, items)
        value = logits.new_zeros(len(items)) if self.value_head is None else self.value_head(hidden[first])
        return torch.cat([tokens.float(), logprobs, value[:, None]], dim=1)

    @staticmethod
    def _sample(logits: Tensor, items: list[MultimodalDataItem]) -> tuple[Tensor, Tensor]:
        """Sample tokens uint8 [rows, K] and their log-probabilities, each row with its own temperature and key."""
        tokens = logits.new_zeros(logits.shape[:2], dtype=torch.uint8)
        logprobs = logits.new_zeros(logits.shape[:2])
        temperatures = [float(item.temperature) for item in items]
        for temperature in dict.fromkeys(temperatures):
            rows = [row for row, wanted in enumerate(temperatures) if wanted == temperature]
            choices = Bins(logits[rows], temperature or 1.0)
            keys = np.concatenate([items[row].key.cpu().numpy() for row in rows]).view(np.uint64)
            tokens[rows] = choices.sample(keys) if temperature else choices.most_likely()
            logprobs[rows] = choices.logprobs(tokens[rows])
        return tokens, logprobs

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load any subset of the official names. Returns our names. Raises ValueError naming unknown ones."""
        parameters = dict(self.named_parameters())
        loaded = set()
        unknown = []
        for name, tensor in weights:
            target, part = self._target(name)
            if target not in parameters:
                unknown.append(name)
                continue
            if name == HEAD:
                end = self.config.action_tokens_end
                tensor = tensor[end - self.config.n_action_bins : end]
            parameter = parameters[target]
            load = getattr(parameter, "weight_loader", default_weight_loader)
            load(parameter, tensor, *part)
            loaded.add(target)
        if unknown:
            raise ValueError(f"unknown tensors: {', '.join(map(repr, unknown))}")
        return loaded

    @staticmethod
    def _target(name: str) -> tuple[str, tuple]:
        """Return our parameter for an official name, and the part if it is fused."""
        if name == HEAD:
            return f"{LM}bins", ()
        if name.startswith(LM):
            for fused, single, part in STACKED:
                if single in name:
                    return name.replace(single, fused), (part,)
        return name, ()


EntryClass = OpenVLAForActionPrediction


class TokenizerOnly:
    """The checkpoint's processor for SGLang: only a tokenizer, since rlrun sends tokenized prompts."""

    @classmethod
    def from_pretrained(cls, folder: str, *_: object, **__: object) -> PreTrainedTokenizerFast:
        """Load the tokenizer of the folder."""
        return PreTrainedTokenizerFast.from_pretrained(folder)


class Media(BaseMultimodalProcessor):
    """Passes one item per request to the scheduler unchanged, with uint8 pixels."""

    models = [OpenVLAForActionPrediction]

    def __init__(self, hf_config: Any, server_args: Any, processor: Any, *args: Any, **kwargs: Any):
        super().__init__(hf_config, server_args, processor, *args, **{**kwargs, "skip_mm_pool": True})

    async def process_mm_data_async(self, image_data: list[Row], *_: object, **__: object) -> MultimodalProcessorOutput:
        (row,) = image_data
        item = MultimodalDataItem(
            modality=Modality.IMAGE,
            hash=row.key,  # nothing is cached by it; else SGLang would hash the pixels
            feature=torch.tensor(row.images),
            model_specific_data={
                "proprio": torch.tensor(row.proprio),
                "key": torch.from_numpy(np.array([row.key], np.uint64).view(np.int64)),
                "temperature": row.temperature,
            },
        )
        return MultimodalProcessorOutput(mm_items=[item])
