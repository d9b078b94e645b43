"""The official config.json, plus fields for reinforcement learning; and the statistics that are beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from transformers import LlamaConfig, PretrainedConfig

from rlrun.policies.action_bounds import BOUND_NAMES
from rlrun.system.errors import ExitStatus, RunError

OFFICIAL_TIMM_IDS = ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"]
OFFICIAL_TOWERS: list[dict[str, Any]] = [
    {
        "hidden_size": 1024,
        "num_layers": 24,
        "num_heads": 16,
        "mlp_size": 4096,
        "num_register_tokens": 4,
        "has_class_token": True,
        "has_layer_scale": True,
    },
    {"hidden_size": 1152, "num_layers": 27, "num_heads": 16, "mlp_size": 4304, "has_attention_pool": True},
]
PROJECTOR = "proprio_projector.fc1.weight"  # [D, P]: its second size is the number of proprioceptive values
RESIZE = "resize-naive"  # Prismatic's name of resizing to the towers' size without regard to the aspect
# of the official config.json: names of what its sizes and weights say, and the backbone's class
_HARMLESS = {
    "arch_specifier",
    "hf_llm_id",
    "llm_backbone_id",
    "llm_max_length",
    "output_projector_states",
    "timm_override_act_layers",
    "use_fused_vision_backbone",
    "vision_backbone_id",
}
FROM_TRAINING = "Take dataset_statistics.json from the training of this checkpoint"


@dataclass(frozen=True)
class TowerShape:
    """Sizes of one vision transformer."""

    hidden_size: int
    num_layers: int  # the last one is never run: features are taken from the block before it
    num_heads: int
    mlp_size: int
    num_register_tokens: int = 0
    has_class_token: bool = False
    has_layer_scale: bool = False
    has_attention_pool: bool = False  # official weights contain an unused one


class OpenVLAOFTConfig(PretrainedConfig):
    """Defaults are those of the published 7B checkpoints, whose config.json lacks every field of rlrun.

    Raises ValueError for a vision backbone with unknown tower shapes.
    """

    model_type = "openvla"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {"text_config": LlamaConfig}
    sub_configs = {"text_config": LlamaConfig}  # transformers before 5.2x, which SGLang pins, needs this

    text_config: Any = None
    image_sizes: Any = None  # [H, W] of the towers' input; None: 224 x 224
    timm_model_ids: Any = None
    vision_towers: Any = None  # two dicts of TowerShape; None: the official pair
    patch_size: int = 14
    norm_stats: Any = None  # {unnorm_key: {"action": {"q01", "q99", "mask", ...}, "proprio": {...}}}
    n_action_bins: int = 256
    pad_token_id: int = 32000
    pad_to_multiple_of: int = 64  # unused rows at the end of the vocabulary; the action tokens end before them
    bos_token_id: int = 1
    stop_token_id: int = 2
    space_token_id: int = 29871  # the last token of every prompt

    num_actions: int = 7  # A
    num_action_chunks: int = 8  # C
    num_images: int = 1
    camera_names: Any = None  # num_images names, in order; None: unknown
    num_proprio: int = 0  # 0: no proprioception token
    value_hidden_sizes: Any = None  # None: no value head
    has_action_queries: bool = False  # learned placeholders in place of zeros
    has_stop_token: bool = True  # append the stop token after the placeholders
    max_prompt_length: int = 50
    unnorm_key: str | None = None
    action_bounds: str = "q99"  # "q99": q01..q99 map to -1..1; "minmax": min..max map to -1..1
    center_crop: bool = False

    def __post_init__(self, **kwargs):
        if self.vision_towers is None:
            if self.timm_model_ids not in (None, OFFICIAL_TIMM_IDS):
                raise ValueError(
                    f"timm_model_ids={self.timm_model_ids}: rlrun knows the towers {OFFICIAL_TIMM_IDS}; "
                    "for others write `vision_towers` (a list of two tower shapes) into config.json"
                )
            self.vision_towers = OFFICIAL_TOWERS
        self.image_sizes = self.image_sizes or [224, 224]
        self.norm_stats = self.norm_stats or {}
        if self.text_config is None or isinstance(self.text_config, dict):  # newer transformers would do this below
            self.text_config = LlamaConfig(**(self.text_config or {}))
        super().__post_init__(**kwargs)
        self.text_config.is_causal = False  # every token sees every token that is not padding

    @property
    def tower_shapes(self) -> list[TowerShape]:
        return [TowerShape(**tower) for tower in self.vision_towers]

    @property
    def num_patches(self) -> int:
        """Number of patches per image."""
        height, width = self.image_sizes
        return (height // self.patch_size) * (width // self.patch_size)

    @property
    def num_action_tokens(self) -> int:
        """K = C*A."""
        return self.num_action_chunks * self.num_actions

    @property
    def action_tokens_end(self) -> int:
        """Vocabulary index after the last action token; the slice holds the n_action_bins before it."""
        return self.text_config.vocab_size - self.pad_to_multiple_of


def known_fields(described: Mapping[str, Any]) -> set[str]:
    """Return the fields of an official config.json that are read or change no action, with those of every model."""
    resizing = {"image_resize_strategy"} if described.get("image_resize_strategy") == RESIZE else set()
    return _HARMLESS.union(resizing, OpenVLAOFTConfig.__annotations__, PretrainedConfig().to_dict())


@dataclass(frozen=True)
class StoredStatistics:
    """One entry of norm_stats: {"action": {"q01", "q99", "min", "max", "mask"}, "proprio": {...}}."""

    file: Path  # that holds it
    key: str  # its name in norm_stats
    values: object
    bounds: str  # "q99" or "minmax", as policy.openvla_oft.action_bounds

    def num_actions(self) -> int:
        """Return the action dimensions. Raises RunError that names what is missing, short or not finite."""
        size = self._checked("action")
        statistics = self._part("action")
        mask = statistics.get("mask", [True] * size)
        if not isinstance(mask, list) or len(mask) != size or not all(isinstance(value, bool) for value in mask):
            has = f"{len(mask)} values" if isinstance(mask, list) else f"a {type(mask).__name__}"
            self._refuse(
                f"action.mask has {has}; there are {size} action dimensions, each of which is true or false",
                f"{FROM_TRAINING}, or write one value per dimension: false where actions are used as they are.",
            )
        return size

    def num_proprio(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the proprioceptive values; raises as `num_actions`. shapes: of the folder's weights."""
        has_projector = len(shapes.get(PROJECTOR, ())) == 2
        if not isinstance(self.values, dict) or "proprio" not in self.values:
            self._refuse(
                "proprio is missing",
                f"{FROM_TRAINING}: its weights read proprioception, so that policy.use_proprio=false is no way out."
                if has_projector
                else "Set policy.use_proprio=false.",
            )
        size = self._checked("proprio")
        if has_projector and shapes[PROJECTOR][1] != size:
            self._refuse(
                f"proprio has {size} values, and the weights read {shapes[PROJECTOR][1]} ({PROJECTOR})",
                f"{FROM_TRAINING}: these are of another robot.",
            )
        return size

    def _checked(self, part: str) -> int:
        """Return the number of dimensions of a part whose bounds are whole."""
        bounds_given = self._part(part)
        names = BOUND_NAMES[self.bounds]
        if missing := [name for name in names if name not in bounds_given]:
            others = [kind for kind, bounds in BOUND_NAMES.items() if all(name in bounds_given for name in bounds)]
            remedies = [f"Set policy.openvla_oft.action_bounds={kind} if it was trained with these." for kind in others]
            self._refuse(
                f"{part}.{missing[0]} is missing (there are {', '.join(map(str, sorted(bounds_given)))})",
                " ".join([*remedies, f"{FROM_TRAINING}, which has it."]),
            )
        low, high = (self._numbers(part, name, bounds_given[name]) for name in names)
        if len(low) != len(high):
            self._refuse(f"{part}.{names[0]} has {len(low)} numbers, {names[1]} {len(high)}", f"{FROM_TRAINING}.")
        if len(crossed := np.flatnonzero(low > high)):
            at = crossed[0]
            self._refuse(
                f"{part}.{names[0]}[{at}] is {low[at]:g}, more than {part}.{names[1]}[{at}], {high[at]:g}",
                f"{FROM_TRAINING}.",
            )
        return len(low)

    def _part(self, part: str) -> dict[str, Any]:
        part_values = self.values.get(part) if isinstance(self.values, dict) else None
        if not isinstance(part_values, dict):
            self._refuse(f"{part} is missing, or holds no statistics by name", f"{FROM_TRAINING}.")
        return part_values

    def _numbers(self, part: str, name: str, found: object) -> np.ndarray:
        try:
            values = np.asarray(found, np.float64)
        except (TypeError, ValueError, OverflowError):
            values = np.zeros(0)
        if values.ndim != 1 or not len(values):
            self._refuse(f"{part}.{name} is no list of numbers", f"{FROM_TRAINING}.")
        if len(wrong := np.flatnonzero(~np.isfinite(values))):
            self._refuse(
                f"{part}.{name}[{wrong[0]}] is {values[wrong[0]]}, and {len(wrong) - 1} more are not finite",
                f"{FROM_TRAINING}; if they are so there too, compute them again without the episodes that hold NaN.",
            )
        return values

    def _refuse(self, cause: str, remedy: str) -> NoReturn:
        raise RunError(
            f"The statistics {self.key!r} in {self.file} cannot be used.",
            key="policy.path",
            value=str(self.file.parent),
            cause=f"norm_stats[{self.key!r}]: {cause}.",
            remedy=remedy,
            exit_status=ExitStatus.bad_input,
        )
