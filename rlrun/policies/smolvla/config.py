"""SmolVLAConfig: the fields of LeRobot's config.json that rlrun reads, and the sizes of the VLM.

LeRobot's config.json names the VLM (`vlm_model_name`), but does not contain its sizes. Those of SmolVLM2-500M are the
defaults here; a folder with another VLM has its sizes in vlm/config.json, in the format of transformers' SmolVLMConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from rlrun.policies.flow.lerobot_config import LeRobotConfig
from rlrun.policies.flow.spec import PatchPositions, VisionSizes

VLM_FOLDER = "vlm"  # in a policy's folder: sizes, tokenizer and processor of the VLM
_TOKEN_IDS = ("fake_image_token_id", "global_image_token_id")


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the language model; the defaults are those of SmolVLM2-500M, before it is cut to `num_vlm_layers`."""

    hidden_size: int = 960
    intermediate_size: int = 2560
    num_hidden_layers: int = 32
    num_attention_heads: int = 15
    num_key_value_heads: int = 5
    head_dim: int = 64
    vocab_size: int = 49280
    rms_norm_eps: float = 1e-5


@dataclass(frozen=True)
class VLMSizes:
    """Sizes of SmolVLM2."""

    vision: VisionSizes = field(default_factory=VisionSizes)
    text: TextSizes = TextSizes()
    scale_factor: int = 4  # the connector makes one token of scale_factor**2 patches
    fake_image_token_id: int = 49189  # <fake_token_around_image>, before and after a picture
    global_image_token_id: int = 49152  # <global-img>, after the first of them

    @property
    def tokens_per_image(self) -> int:
        return (self.vision.image_size // self.vision.patch_size // self.scale_factor) ** 2

    @classmethod
    def from_transformers(cls, config: Mapping[str, Any]) -> VLMSizes:
        """Read transformers' SmolVLMConfig as a mapping; absent sizes keep the defaults."""
        text = dict(config.get("text_config") or {})
        text.setdefault("head_dim", _head_dim(text))
        values = {name: config[name] for name in ("scale_factor", *_TOKEN_IDS) if name in config}
        return cls(
            vision=_known_fields(VisionSizes, config.get("vision_config") or {}),
            text=_known_fields(TextSizes, text),
            **values,
        )

    def as_transformers(self) -> dict[str, Any]:
        """Return transformers' SmolVLMConfig as a mapping, which `from_transformers` and AutoConfig read."""
        values = {name: getattr(self, name) for name in ("scale_factor", *_TOKEN_IDS)}
        return {
            "model_type": "smolvlm",
            "text_config": {"model_type": "llama", **asdict(self.text)},
            "vision_config": {"model_type": "smolvlm_vision", **asdict(self.vision)},
            **values,
        }


def _head_dim(text: Mapping[str, Any]) -> int:
    width, heads = (text.get(name) or getattr(TextSizes, name) for name in ("hidden_size", "num_attention_heads"))
    return int(width) // int(heads)


def _known_fields(kind: type, content: Mapping[str, Any]) -> Any:
    names = {entry.name for entry in fields(kind)}
    return kind(**{name: value for name, value in content.items() if name in names and value is not None})


@dataclass(frozen=True)
class SmolVLAConfig(LeRobotConfig):
    """The architecture of a SmolVLA; names and defaults are those of LeRobot 0.4.

    Raises ValueError for sizes that do not fit together, and for variants that rlrun does not have.
    """

    resize_imgs_with_padding: tuple[int, int] | None = (512, 512)  # width, height; None: pictures are used as they are
    adapt_to_pi_aloha: bool = False
    num_steps: int = 10  # Euler steps from noise to actions
    vlm_model_name: str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    add_image_special_tokens: bool = False
    attention_mode: Literal["cross_attn", "self_attn"] = "cross_attn"
    prefix_length: int = -1  # the prefix is padded to it
    pad_language_to: str = "longest"  # or "max_length": to tokenizer_max_length
    num_expert_layers: int = -1  # 0 or less: as many as the VLM has
    num_vlm_layers: int = 16  # the first ones are used; 0 or less: all
    self_attn_every_n_layers: int = 2
    expert_width_multiplier: float = 0.75
    vlm: VLMSizes = VLMSizes()  # not in config.json
    patch_positions: PatchPositions = PatchPositions.exact  # not in config.json

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_expert_layers > 0 and self.num_expert_layers != self.num_layers:
            raise ValueError(f"num_expert_layers={self.num_expert_layers}: rlrun has one expert layer per VLM layer")
        if self.adapt_to_pi_aloha:
            raise ValueError("adapt_to_pi_aloha=true: rlrun does not convert ALOHA's joints")
        if self.attention_mode not in ("cross_attn", "self_attn"):
            raise ValueError(f"attention_mode={self.attention_mode}: rlrun has cross_attn and self_attn")
        if self.resize_imgs_with_padding not in (None, (self.vlm.vision.image_size,) * 2):
            raise ValueError(
                f"resize_imgs_with_padding={self.resize_imgs_with_padding}, but the VLM takes "
                f"{self.vlm.vision.image_size} pixels per side"
            )

    @property
    def num_layers(self) -> int:
        """Layers of the VLM that run, and of the expert."""
        return self.num_vlm_layers if self.num_vlm_layers > 0 else self.vlm.text.num_hidden_layers

    @property
    def expert_width(self) -> int:
        return int(self.vlm.text.hidden_size * self.expert_width_multiplier)

    @property
    def expert_inner(self) -> int:
        """The width of the expert's MLP: 8/3 of its own width, rounded up to a multiple of 256."""
        inner = int(4 * int(2 * self.expert_width / 3))
        return -(-inner // 256) * 256

    def is_cross(self, layer: int) -> bool:
        """Return whether the expert's layer attends only to the prefix; else it attends to its own tokens too."""
        every = self.self_attn_every_n_layers
        return self.attention_mode == "cross_attn" and not (every > 0 and layer % every == 0)

    def prefix_tokens(self, num_images: int, num_words: int) -> int:
        """Return S, the length of the prefix for num_images pictures and num_words language tokens."""
        special = 3 if self.add_image_special_tokens else 0
        pictures = num_images * (self.vlm.tokens_per_image + special) + self.empty_cameras * special
        return max(pictures + num_words + 1, self.prefix_length)

    @classmethod
    def from_lerobot(cls, content: Mapping[str, Any], vlm: VLMSizes) -> SmolVLAConfig:
        """Read LeRobot's config.json as a mapping. Fields that do not change the network are ignored.

        Raises ValueError as the class does, and for another `type`.
        """
        if content.get("type", "smolvla") != "smolvla":
            raise ValueError(f"type={content['type']!r}: the folder holds another policy than smolvla")
        return cls.read(content, vlm=vlm, patch_positions=PatchPositions.exact)

    def as_lerobot(self) -> dict[str, Any]:
        """Return config.json as a mapping, which LeRobot's SmolVLAConfig parses; it has no field for the others."""
        left_out = {"vlm", "patch_positions"}
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in left_out}
        size = values["resize_imgs_with_padding"]
        return {"type": "smolvla", **values, "resize_imgs_with_padding": None if size is None else list(size)}

    def with_(self, **changes: Any) -> SmolVLAConfig:
        """Return a copy with other values."""
        return replace(self, **changes)
