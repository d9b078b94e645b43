"""PiConfig: the architecture of pi0 and pi0.5, with the sizes that openpi and LeRobot publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlrun.policies.smolvla.config import VisionSizes


@dataclass(frozen=True)
class GemmaSizes:
    """Sizes of a Gemma; names are openpi's."""

    width: int
    mlp_dim: int
    depth: int = 18
    num_heads: int = 8
    num_kv_heads: int = 1
    head_dim: int = 256


GEMMA_2B = GemmaSizes(width=2048, mlp_dim=16384)
GEMMA_300M = GemmaSizes(width=1024, mlp_dim=4096)
SIGLIP_SO400M = VisionSizes(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_attention_heads=16,
    image_size=224,
    patch_size=14,
)


@dataclass(frozen=True)
class PiConfig:
    """The defaults are those of the published pi0 and pi0.5 (3.2 and 3.3 billion parameters with their heads).

    Raises ValueError for sizes that do not fit together.
    """

    type: Literal["pi0", "pi05"] = "pi0"
    chunk_size: int = 50  # control steps that one denoising gives
    n_action_steps: int = 50  # of these, how many are executed
    max_state_dim: int = 32  # the state is padded to it
    max_action_dim: int = 32  # actions are padded to it
    num_inference_steps: int = 10  # Euler steps from noise to actions
    min_period: float = 4e-3  # of the sines and cosines of the flow time
    max_period: float = 4.0
    language: GemmaSizes = GEMMA_2B
    expert: GemmaSizes = GEMMA_300M
    vision: VisionSizes = SIGLIP_SO400M
    vocab_size: int = 257152

    def __post_init__(self) -> None:
        shared = ("depth", "num_heads", "num_kv_heads", "head_dim")
        unlike = [name for name in shared if getattr(self.language, name) != getattr(self.expert, name)]
        if unlike:
            raise ValueError(f"language model and expert attend together, but differ in {', '.join(unlike)}")
        if self.n_action_steps > self.chunk_size:
            raise ValueError(f"n_action_steps={self.n_action_steps} exceeds chunk_size={self.chunk_size}")

    @property
    def is_adaptive(self) -> bool:
        """Whether the flow time enters the expert's norms, and the state the prompt (pi0.5); else both are inputs of
        the expert."""
        return self.type == "pi05"

    @property
    def tokens_per_image(self) -> int:
        return (self.vision.image_size // self.vision.patch_size) ** 2


def small(
    type: Literal["pi0", "pi05"],
    vocab_size: int = 320,
    chunk_size: int = 50,
    image_size: int = 64,
    patch_size: int = 16,
    **changes: Any,
) -> PiConfig:
    """Return a pi0 or pi0.5 of 1 M parameters for two CPU cores. changes: other fields of PiConfig.

    A picture gives (image_size / patch_size)**2 tokens.
    """
    shared = {"depth": 4, "num_heads": 4, "num_kv_heads": 1, "head_dim": 24}
    sizes: dict[str, Any] = {
        "language": GemmaSizes(width=96, mlp_dim=256, **shared),
        "expert": GemmaSizes(width=72, mlp_dim=192, **shared),
        "vision": VisionSizes(64, 256, 3, 4, image_size, patch_size),
    }
    lengths = {"chunk_size": chunk_size, "n_action_steps": chunk_size, "vocab_size": vocab_size}
    return PiConfig(type=type, **(sizes | lengths | changes))
