"""Non-text inputs of a request: raw frames, proprioception, a sampling key. Runs in the engine's front process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor
from transformers import PreTrainedTokenizerFast

from rlrun.rollout.sglang.model import OpenVLAForActionPrediction
from rlrun.rollout.sglang.row import Row


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
