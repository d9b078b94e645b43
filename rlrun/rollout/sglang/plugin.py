"""SGLang's plug-in points, used: a model, its media and a configuration. Runs in every process that SGLang starts."""

from __future__ import annotations

from sglang.srt.configs import model_config
from sglang.srt.managers import multimodal_processor, tokenizer_manager
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.multimodal.customized_mm_processor_utils import _CUSTOMIZED_MM_PROCESSOR
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from rlrun.policies.openvla_oft.model import OFFICIAL_ARCHITECTURE  # registers model type "openvla"
from rlrun.rollout.sglang.media import Media, TokenizerOnly
from rlrun.rollout.sglang.model import OpenVLAForActionPrediction


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`."""
    ModelRegistry.models[OFFICIAL_ARCHITECTURE] = OpenVLAForActionPrediction
    model_config.multimodal_model_archs.append(OFFICIAL_ARCHITECTURE)
    multimodal_processor.PROCESSOR_MAPPING[OpenVLAForActionPrediction] = Media
    _CUSTOMIZED_MM_PROCESSOR["openvla"] = TokenizerOnly
    # One model is served; importing the processors of a hundred others takes half of the start.
    HookRegistry.register(f"{tokenizer_manager.__name__}.import_processors", _none_else, HookType.REPLACE)


def _none_else(*_: object, **__: object) -> None:
    """In place of importing every processor that SGLang ships."""
