"""Gr00tConfig: the fields of LeRobot's config.json that rlrun reads, the sizes of the network, and how pictures enter.

LeRobot's config.json names a base model (`base_model_path`), but does not contain its sizes. Those of
nvidia/GR00T-N1.7-3B are the defaults here; a folder of other sizes has them in base/config.json, by NVIDIA's names, and
those of its VLM in backbone/config.json, in the format of transformers' Qwen3VLConfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rlrun.policies.flow.lerobot_config import IMAGES, VISUAL, Features, LeRobotConfig

# in a policy's folder
BASE_FOLDER = "base"
BACKBONE_FOLDER = "backbone"
PUBLISHED_BASE = "nvidia/GR00T-N1.7-3B"
PUBLISHED_BACKBONE = "nvidia/Cosmos-Reason2-2B"
MERGED = 2  # patches per side that Qwen3-VL makes one token of
SIGN_OF_GRIPPER = "libero"  # LeRobot's name of what becomes of the gripper's number: 0 … 1 becomes 1 or -1
NEW_EMBODIMENT = "new_embodiment"
EMBODIMENTS = {  # tag -> row of the projections, as published
    "simpler_env_google": 0,
    "simpler_env_widowx": 1,
    "libero_sim": 2,
    NEW_EMBODIMENT: 10,
    "oxe_droid_relative_eef_relative_joint": 24,
    "real_g1_relative_eef_relative_joints": 25,
    "unitree_g1_full_body_with_waist_height_nav_cmd": 25,
    "real_r1_pro_sharpa_relative_eef": 26,
    "xdof_relative_eef_relative_joint": 27,
}
# of LeRobot's config.json: its training, its precision, and the size of pictures, which the preprocessor has. Names of
# tensors tell whether adapters (lora_…) are merged.
HARMLESS = {
    "balance_dataset_weights",
    "balance_trajectory_weights",
    "batch_size",
    "dataloader_num_workers",
    "dataset_paths",
    "image_size",
    "lora_alpha",
    "lora_dropout",
    "lora_full_model",
    "lora_rank",
    "max_steps",
    "model_params_fp32",
    "model_version",
    "output_dir",
    "report_to",
    "resume",
    "save_steps",
    "tokenizer_assets_repo",
    "use_bf16",
    "use_flash_attention",
    "video_backend",
    "warmup_ratio",
}
VERSIONS = ("n1.7", "n1_7", "n1d7", "n17", "1.7")  # spellings of the only one that LeRobot and rlrun have
_OTHER_VERSION = re.compile(r"gr00t[-_]n(?!1[._d]?7)[\d._d]+", re.IGNORECASE)  # in the name of a base model
_OF_ROPE = ("rope_theta", "mrope_section")
_ONLY = {"state_history_length": 1, "add_pos_embed": True, "use_vlln": True, "use_alternate_vl_dit": True}


@dataclass(frozen=True)
class TowerSizes:
    """Sizes of Qwen3-VL's vision tower; names are those of transformers' configuration."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    depth: int = 24
    num_heads: int = 16
    patch_size: int = 16
    num_position_embeddings: int = 2304  # a square grid, which is interpolated to that of a picture
    deepstack_visual_indexes: tuple[int, ...] = (5, 11, 17)  # after these layers features go to the language model


@dataclass(frozen=True)
class TextSizes:
    """Sizes of Qwen3-VL's language model, before it is cut to `select_layer`; names are those of transformers."""

    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151936
    rms_norm_eps: float = 1e-6
    rope_theta: float = 5_000_000.0
    mrope_section: tuple[int, ...] = (24, 20, 20)  # pairs of a head that turn by time, row, column


@dataclass(frozen=True)
class BackboneSizes:
    """Sizes of Qwen3-VL; the defaults are those of Cosmos-Reason2-2B."""

    vision: TowerSizes = TowerSizes()
    text: TextSizes = TextSizes()
    image_token_id: int = 151655

    @classmethod
    def from_transformers(cls, config: Mapping[str, Any]) -> BackboneSizes:
        """Read transformers' Qwen3VLConfig as a mapping; absent sizes keep the defaults."""
        text = dict(config.get("text_config") or {})
        for rope in ("rope_scaling", "rope_parameters"):
            text |= {name: value for name, value in (text.get(rope) or {}).items() if name in _OF_ROPE}
        sizes = _known_fields(TowerSizes, config.get("vision_config") or {}), _known_fields(TextSizes, text)
        return cls(*sizes, config.get("image_token_id", cls.image_token_id))

    def as_transformers(self) -> dict[str, Any]:
        """Return transformers' Qwen3VLConfig as a mapping, which `from_transformers` and AutoConfig read."""
        text = asdict(self.text)
        rope = {name: text.pop(name) for name in _OF_ROPE}
        beyond = self.text.vocab_size  # videos: a token that no prompt has
        return {
            "model_type": "qwen3_vl",
            "image_token_id": self.image_token_id,
            "video_token_id": beyond,
            "tie_word_embeddings": True,
            "text_config": {
                "model_type": "qwen3_vl_text",
                **text,
                "rope_parameters": {"rope_type": "default", "mrope_interleaved": True, **rope},
            },
            "vision_config": {
                "model_type": "qwen3_vl_vision",
                **asdict(self.vision),
                "out_hidden_size": self.text.hidden_size,
                "spatial_merge_size": MERGED,
                "temporal_patch_size": 2,
            },
        }


def _known_fields(kind: type, content: Mapping[str, Any]) -> Any:
    names = {entry.name for entry in fields(kind)}
    known = {name: value for name, value in content.items() if name in names and value is not None}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a transformer of the action head."""

    num_layers: int
    num_attention_heads: int
    attention_head_dim: int

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


@dataclass(frozen=True)
class Gr00tSizes:
    """Sizes of the network; names are NVIDIA's where they have one, defaults those of GR00T-N1.7-3B.

    Raises ValueError for sizes that do not fit together.
    """

    dit: TransformerSizes = TransformerSizes(32, 32, 48)
    vl_self_attention: TransformerSizes = TransformerSizes(4, 32, 64)
    hidden_size: int = 1024  # of the projections, and of what the transformer makes of an action
    select_layer: int = 16  # the first layers of the language model, which run
    action_horizon: int = 40
    max_state_dim: int = 132
    max_action_dim: int = 132
    max_num_embodiments: int = 32
    max_seq_len: int = 1024  # positions of actions
    num_timestep_buckets: int = 1000
    attend_text_every_n_blocks: int = 2
    backbone: BackboneSizes = BackboneSizes()

    def __post_init__(self) -> None:
        if self.vl_self_attention.num_layers and self.vl_self_attention.width != self.backbone.text.hidden_size:
            raise ValueError(
                f"vl_self_attention_cfg is {self.vl_self_attention.width} wide, the language model "
                f"{self.backbone.text.hidden_size}"
            )
        if self.action_horizon > self.max_seq_len:
            raise ValueError(f"action_horizon={self.action_horizon} exceeds max_seq_len={self.max_seq_len}")

    @classmethod
    def from_nvidia(cls, content: Mapping[str, Any], backbone: BackboneSizes) -> Gr00tSizes:
        """Read NVIDIA's config.json as a mapping; absent sizes keep the defaults.

        Raises ValueError for variants that rlrun does not have.
        """
        for name, only in _ONLY.items():
            if content.get(name, only) != only:
                raise ValueError(f"{name}={content[name]}: rlrun has {only}")
        values = {entry.name: content[entry.name] for entry in fields(cls) if entry.name in content}
        values = {name: value for name, value in values.items() if isinstance(value, int)}
        for name, key in (("dit", "diffusion_model_cfg"), ("vl_self_attention", "vl_self_attention_cfg")):
            if key in content:
                values[name] = _known_fields(TransformerSizes, content[key])
        sizes = cls(**values, backbone=backbone)
        dit = content.get("diffusion_model_cfg") or {}
        if dit.get("output_dim", sizes.hidden_size) != sizes.hidden_size:
            raise ValueError(f"output_dim={dit['output_dim']} of the transformer is not {sizes.hidden_size}")
        return sizes

    def as_nvidia(self, backbone_name: str) -> dict[str, Any]:
        """Return NVIDIA's config.json as a mapping. backbone_name: of the VLM on the hub, or its folder."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        dit = values.pop("dit")
        attention = values.pop("vl_self_attention")
        del values["backbone"]
        shared = {"positional_embeddings": None, "dropout": 0.2, "final_dropout": True}
        ada = {"norm_type": "ada_norm", "output_dim": self.hidden_size, "interleave_self_attention": True}
        return {
            "architectures": ["Gr00tN1d7"],
            "model_type": "Gr00tN1d7",
            "model_name": backbone_name,
            "backbone_model_type": "qwen",
            "backbone_embedding_dim": self.backbone.text.hidden_size,
            "input_embedding_dim": dit.width,
            **_ONLY,
            **values,
            "diffusion_model_cfg": {**asdict(dit), **shared, **ada},
            "vl_self_attention_cfg": {**asdict(attention), **shared},
        }


@dataclass(frozen=True)
class Pictures:
    """How a camera's picture becomes the VLM's; LeRobot has it in policy_preprocessor.json, by these names."""

    image_target_size: tuple[int, int] = (256, 256)  # height, width
    image_crop_size: tuple[int, int] | None = (230, 230)  # of the target: the share that is cut out in the middle
    shortest_image_edge: int | None = None  # to which a picture is resized before; None: the target's height
    crop_fraction: float | None = None  # None: by image_crop_size
    letter_box_transform: bool = False  # black beside pictures that are no squares
    use_albumentations: bool = False  # OpenCV's INTER_AREA in place of bicubic

    def __post_init__(self) -> None:
        if self.image_target_size[0] != self.image_target_size[1]:
            raise ValueError(f"image_target_size={list(self.image_target_size)}: rlrun has square pictures")

    @property
    def side(self) -> int:
        """Pixels per side of the VLM's pictures."""
        return self.image_target_size[0]

    @property
    def share(self) -> float:
        """The share of a side that is cut out; 1: all of it."""
        share = self.crop_fraction
        if share is None and self.image_crop_size is not None:
            share = self.image_crop_size[0] / self.side
        return share if share is not None and 0.0 < share < 1.0 else 1.0


def decode_transform(content: Mapping[str, Any]) -> str | None:
    """Return what becomes of the gripper's number by LeRobot's config.json; None: nothing."""
    named = content.get("action_decode_transform", "auto")
    if named != "auto":
        return None if named is None else str(named)
    return SIGN_OF_GRIPPER if content.get("embodiment_tag") == "libero_sim" else None


@dataclass(frozen=True)
class Gr00tConfig(LeRobotConfig):
    """The architecture of a GR00T N1.7; names and defaults are those of LeRobot.

    Raises ValueError for sizes that do not fit together, and for variants that rlrun does not have.
    """

    normalization_mapping: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), "IDENTITY")
    )
    chunk_size: int = 40  # control steps that its demonstrations had, of the network's action_horizon
    n_action_steps: int = 40
    max_state_dim: int = 132
    max_action_dim: int = 132
    num_inference_timesteps: int | None = None  # Euler steps from noise to actions; None: 4
    base_model_path: str = PUBLISHED_BASE
    embodiment_tag: str = NEW_EMBODIMENT
    action_decode_transform: str | None = None  # or SIGN_OF_GRIPPER
    use_relative_actions: bool = False
    tokenizer_max_length: int = 4096  # not in config.json
    formalize_language: bool = True  # small letters, without punctuation; not in config.json
    embodiment: int = EMBODIMENTS[NEW_EMBODIMENT]  # row of the projections; not in config.json
    sizes: Gr00tSizes = Gr00tSizes()  # not in config.json
    pictures: Pictures = Pictures()  # not in config.json

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_relative_actions:
            raise ValueError("use_relative_actions=true: rlrun does not have it")
        if self.action_decode_transform not in (None, "none", SIGN_OF_GRIPPER):
            raise ValueError(f"action_decode_transform={self.action_decode_transform}: rlrun has {SIGN_OF_GRIPPER}")
        for name in ("max_state_dim", "max_action_dim"):
            if getattr(self, name) != getattr(self.sizes, name):
                raise ValueError(f"{name}={getattr(self, name)}, but the network has {getattr(self.sizes, name)}")
        if self.chunk_size > self.sizes.action_horizon:
            raise ValueError(f"chunk_size={self.chunk_size}, but the network plans {self.sizes.action_horizon}")
        if not 0 <= self.embodiment < self.sizes.max_num_embodiments:
            raise ValueError(f"embodiment {self.embodiment} of {self.sizes.max_num_embodiments}")
        if self.pictures.side % (MERGED * self.sizes.backbone.vision.patch_size):
            raise ValueError(f"image_target_size={self.pictures.side} is no multiple of two patches")

    @property
    def horizon(self) -> int:
        return self.sizes.action_horizon

    @property
    def tokens_per_image(self) -> int:
        return (self.pictures.side // self.sizes.backbone.vision.patch_size // MERGED) ** 2

    @classmethod
    def from_lerobot(cls, content: Mapping[str, Any], sizes: Gr00tSizes, **own: Any) -> Gr00tConfig:
        """Read LeRobot's config.json as a mapping. Fields that do not change the network are ignored.

        own: fields that are not in it. Raises ValueError as the class does, and for another `type`.
        """
        if content.get("type", "groot") != "groot":
            raise ValueError(f"type={content['type']!r}: the folder holds another policy than groot")
        version = str(content.get("model_version") or VERSIONS[0])
        named = _OTHER_VERSION.search(str(content.get("base_model_path", "")))
        if version.lower() not in VERSIONS or named is not None:
            raise ValueError(f"it is of {named.group() if named else f'GR00T {version}'}, and rlrun has N1.7 only")
        known = dict(content)
        known["action_decode_transform"] = decode_transform(content)
        return cls.read(known, **{"tokenizer_max_length": cls.tokenizer_max_length, "sizes": sizes, **own})

    def as_lerobot(self) -> dict[str, Any]:
        """Return config.json as a mapping, which LeRobot's GrootConfig parses; it has no field for the others."""
        left_out = {"sizes", "pictures", "embodiment", "formalize_language", "tokenizer_max_length"}
        absent = {"empty_cameras", "min_period", "max_period"}
        names = [entry.name for entry in fields(self) if entry.name not in left_out | absent]
        return {"type": "groot", **{name: getattr(self, name) for name in names}}

    def with_(self, **changes: Any) -> Gr00tConfig:
        """Return a copy with other values."""
        return replace(self, **changes)


def in_order(features: Features, keys: Sequence[str] | None) -> Features:
    """Return input features whose pictures are in the order of the prompt, without those that it does not have.

    keys: short names of cameras; None: all of them, by the alphabet. LeRobot takes `image2` for `wrist_image`.
    """
    pictures = {name for name, feature in features.items() if feature["type"] == VISUAL}
    if keys is None:
        chosen = sorted(pictures)
    else:
        short = [key if f"{IMAGES}.{key}" in pictures or key != "wrist_image" else "image2" for key in keys]
        chosen = [f"{IMAGES}.{key}" for key in short if f"{IMAGES}.{key}" in pictures] or sorted(pictures)
    others = {name: feature for name, feature in features.items() if name not in pictures}
    return {name: features[name] for name in chosen} | others
