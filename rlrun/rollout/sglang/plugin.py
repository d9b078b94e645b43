"""Registers our model, its media and its configuration with SGLang. Runs in every process that SGLang starts."""

from __future__ import annotations

from sglang.srt.configs import model_config
from sglang.srt.managers import multimodal_processor, tokenizer_manager
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.multimodal.customized_mm_processor_utils import _CUSTOMIZED_MM_PROCESSOR
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from rlrun.policies.openvla_oft.model import OFFICIAL_ARCHITECTURE  # registers model type "openvla"
from rlrun.rollout.sglang.model import Media, OpenVLAForActionPrediction, TokenizerOnly


def register() -> None:
    """Register everything; the entry point of the group `sglang.srt.plugins`."""
    ModelRegistry.models[OFFICIAL_ARCHITECTURE] = OpenVLAForActionPrediction
    model_config.multimodal_model_archs.append(OFFICIAL_ARCHITECTURE)
    multimodal_processor.PROCESSOR_MAPPING[OpenVLAForActionPrediction] = Media
    _CUSTOMIZED_MM_PROCESSOR["openvla"] = TokenizerOnly
    # Importing the processors of a hundred other models takes half of the start.
    HookRegistry.register(f"{tokenizer_manager.__name__}.import_processors", _import_nothing, HookType.REPLACE)


def _import_nothing(*_: object, **__: object) -> None:
    """Replace the import of every processor that SGLang ships."""
