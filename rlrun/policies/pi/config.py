"""PiConfig: the architecture of pi0 and pi0.5, with the sizes that openpi and LeRobot publish.

config.json names the sizes of PaliGemma and expert (gemma_2b, gemma_300m), which are the defaults here; a folder of
other sizes has them in paligemma/config.json.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.lerobot_config import LeRobotConfig, features, numbered
from rlrun.policies.flow.spec import VisionSizes

PROMPT_LENGTH = {"pi0": 48, "pi05": 200}  # tokenizer_max_length; pi0.5 has the state in it
MODES = {"pi0": "MEAN_STD", "pi05": "QUANTILES"}  # of state and actions
EMBEDDINGS = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
HEADS = (  # over words: in official checkpoints, and not in the network
    "model.paligemma_with_expert.paligemma.lm_head.weight",  # the same tensor as EMBEDDINGS
    "model.paligemma_with_expert.gemma_expert.lm_head.weight",
)
PALIGEMMA_FOLDER = "paligemma"  # in a policy's folder: sizes and tokenizer
VARIANTS = ("gemma_2b", "gemma_300m")  # of PaliGemma's language model, and of the expert
SIGLIP_SO400M = VisionSizes(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_attention_heads=16,
    image_size=224,
    patch_size=14,
)
ADAPTIVE = "model.time_mlp_in.weight"  # only pi0.5 has it


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


@dataclass(frozen=True)
class PiSizes:
    """Sizes of the networks; the defaults are the published ones."""

    language: GemmaSizes = GEMMA_2B
    expert: GemmaSizes = GEMMA_300M
    vision: VisionSizes = SIGLIP_SO400M
    vocab_size: int = 257152

    def __post_init__(self) -> None:
        shared = ("depth", "num_heads", "num_kv_heads", "head_dim")
        unlike = [name for name in shared if getattr(self.language, name) != getattr(self.expert, name)]
        if unlike:
            raise ValueError(f"language model and expert attend together, but differ in {', '.join(unlike)}")

    @property
    def tokens_per_image(self) -> int:
        return (self.vision.image_size // self.vision.patch_size) ** 2

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PiSizes:
        """Read the result of `as_json`. Raises TypeError for unknown names."""
        kinds = {"language": GemmaSizes, "expert": GemmaSizes, "vision": VisionSizes}
        return cls(**{name: kinds[name](**value) if name in kinds else value for name, value in content.items()})

    def as_json(self) -> dict[str, Any]:
        """Return all sizes by name."""
        return asdict(self)


@dataclass(frozen=True)
class PiConfig(LeRobotConfig):
    """The defaults are those of the published pi0 (3.2 billion parameters with its heads; pi0.5 has 3.3).

    Raises ValueError for sizes that do not fit together, and for variants that rlrun does not have.
    """

    type: str = "pi0"  # or "pi05"
    num_inference_steps: int = 10  # Euler steps from noise to actions
    paligemma_variant: str = VARIANTS[0]
    action_expert_variant: str = VARIANTS[1]
    image_resolution: tuple[int, int] = (224, 224)
    use_relative_actions: bool = False
    use_visual_memory: bool = False
    use_proprioceptive_memory: bool = False
    sizes: PiSizes = PiSizes()  # not in config.json

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.type not in PROMPT_LENGTH:
            raise ValueError(f"type={self.type!r}: the folder holds another policy than pi0 and pi05")
        if (self.paligemma_variant, self.action_expert_variant) != VARIANTS:
            raise ValueError(f"{self.paligemma_variant} with {self.action_expert_variant}: rlrun has {VARIANTS}")
        if tuple(self.image_resolution) != (self.sizes.vision.image_size,) * 2:
            raise ValueError(
                f"image_resolution={self.image_resolution}, but the vision tower takes "
                f"{self.sizes.vision.image_size} pixels per side"
            )
        for name in ("use_relative_actions", "use_visual_memory", "use_proprioceptive_memory"):
            if getattr(self, name):
                raise ValueError(f"{name}=true: rlrun does not have it")

    @property
    def is_adaptive(self) -> bool:
        """Whether the flow time enters the expert's norms, and the state the prompt (pi0.5); else both are inputs of
        the expert."""
        return self.type == "pi05"

    @classmethod
    def from_lerobot(cls, content: Mapping[str, Any], sizes: PiSizes) -> PiConfig:
        """Read LeRobot's config.json as a mapping. Raises ValueError as the class does."""
        kind = content.get("type")
        mode = MODES.get(str(kind), "IDENTITY")
        defaults = {
            "tokenizer_max_length": PROMPT_LENGTH.get(str(kind), 0),
            "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode},
        }
        return cls.read(defaults | dict(content), sizes=sizes)

    def as_lerobot(self) -> dict[str, Any]:
        """Return config.json as a mapping, which LeRobot 0.4 parses."""
        later = {"use_relative_actions", "use_visual_memory", "use_proprioceptive_memory"}  # always false here
        names = [entry.name for entry in fields(self) if entry.name not in {"sizes"} | later]
        return {name: getattr(self, name) for name in names} | {"image_resolution": list(self.image_resolution)}

    def with_(self, **changes: Any) -> PiConfig:
        """Return a copy with other values."""
        return replace(self, **changes)


def is_openpi(content: Mapping[str, Any]) -> bool:
    """Return whether a config.json is openpi's."""
    return "type" not in content and {"action_horizon", "paligemma_variant"} <= content.keys()


def full_name(name: str) -> str:
    """Return the name in PiNetwork of a stored tensor. openpi's lack the first level."""
    return name if name.startswith("model.") else f"model.{name}"


def kind_of(names: Collection[str]) -> str:
    """Return "pi0" or "pi05", which only the names of the tensors tell."""
    return "pi05" if ADAPTIVE in names else "pi0"


def read_config(content: Mapping[str, Any], kind: str, sizes: PiSizes, spaces: PlannedSpaces) -> PiConfig:
    """Return the configuration. kind: "pi0" or "pi05"; spaces: of the run.

    Raises ValueError as PiConfig does.
    """
    side = sizes.vision.image_size
    chunk = content["action_horizon"]
    width = content["action_dim"]
    return PiConfig.from_lerobot(
        {
            "type": kind,
            "chunk_size": chunk,
            "n_action_steps": chunk,
            "max_action_dim": width,
            "max_state_dim": width,
            "tokenizer_max_length": PROMPT_LENGTH[kind],
            "image_resolution": [side, side],
            "paligemma_variant": content["paligemma_variant"],
            "action_expert_variant": content["action_expert_variant"],
            **features(numbered(spaces.num_images), side, spaces.num_proprio, spaces.num_actions),
        },
        sizes,
    )
