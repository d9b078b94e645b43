"""pi0 and pi0.5 without torch: the keys of policy.pi, the architecture and size of a policy, and the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, bounded
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.lerobot_config import features, numbered
from rlrun.policies.flow.spec import (
    FlowSettings,
    count_new,
    flow_spec,
    new_vision_sizes,
    stored_json,
)
from rlrun.policies.folders import named_parameters_in
from rlrun.policies.pi.config import (
    MODES,
    PALIGEMMA_FOLDER,
    PROMPT_LENGTH,
    GemmaSizes,
    PiConfig,
    PiSizes,
    full_name,
    is_openpi,
    kind_of,
    read_config,
)
from rlrun.policies.spec import CONFIG_FILE

PADDED = 32  # dimensions of state and actions at least, as in released policies
ASSUMED_WORDS = 320  # of the vocabulary, while the instructions are unknown
NEW_PROMPT_LENGTH = 512  # tokens; a small tokenizer makes one of every number of the state


class Version(Enum):
    """The policies of this kind; names are those of LeRobot's config.json."""

    pi0 = "pi0"
    pi05 = "pi05"


class StateInPrompt(Enum):
    """The numbers in pi0.5's prompt."""

    real = "real"  # those of the state, as in openpi and LeRobot from 0.5 on
    padded = "padded"  # those of the state padded with zeros, as in LeRobot 0.4
    none = "none"  # no state, as in openpi's pi05_libero


@dataclass
class PiSettings(FlowSettings):
    """Settings for policy.kind=pi; version and sizes apply to a new policy."""

    version: Version = Version.pi05
    state_in_prompt: StateInPrompt | None = None  # of pi0.5; null: as the folder says, else real
    norm_stats_path: str | None = None  # norm_stats.json of a folder of openpi's, if it has none or several in assets/
    expert_hidden_size: int = bounded(72, COUNT)
    expert_intermediate_size: int = bounded(192, COUNT)


def new_config(
    config: RunConfig, num_actions: int, num_proprio: int, cameras: Sequence[str], vocab_size: int = ASSUMED_WORDS
) -> PiConfig:
    """Return the architecture."""
    settings = config.policy.section(PiSettings)
    side = config.env.image_size
    chunk = config.policy.num_action_chunks
    kind = settings.version.name
    shared = {
        "depth": settings.llm_num_layers,
        "num_heads": settings.llm_num_heads,
        "num_kv_heads": 1,
        "head_dim": settings.llm_hidden_size // settings.llm_num_heads,
    }
    sizes = PiSizes(
        language=GemmaSizes(settings.llm_hidden_size, settings.llm_intermediate_size, **shared),
        expert=GemmaSizes(settings.expert_hidden_size, settings.expert_intermediate_size, **shared),
        vision=new_vision_sizes(settings, side),
        vocab_size=vocab_size,
    )
    return PiConfig(
        **features(cameras, side, num_proprio, num_actions),
        normalization_mapping={"VISUAL": "IDENTITY", "STATE": MODES[kind], "ACTION": MODES[kind]},
        type=kind,
        chunk_size=chunk,
        n_action_steps=chunk,
        max_state_dim=max(PADDED, num_proprio),
        max_action_dim=max(PADDED, num_actions),
        tokenizer_max_length=NEW_PROMPT_LENGTH,
        num_inference_steps=settings.num_flow_steps,
        image_resolution=(side, side),
        sizes=sizes,
    )


def pi_config(config: RunConfig, spaces: PlannedSpaces) -> PiConfig:
    """Return the architecture; a folder that is not on this machine counts as the published one."""
    settings = config.policy.section(PiSettings)
    if config.policy.path is None:
        return new_config(config, spaces.num_actions, spaces.num_proprio, numbered(spaces.num_images))
    content = stored_json(config, CONFIG_FILE)
    own_sizes = stored_json(config, f"{PALIGEMMA_FOLDER}/{CONFIG_FILE}")
    sizes = PiSizes.from_json(own_sizes) if own_sizes else PiSizes()
    if is_openpi(content):
        stored = _stored_parameters(config)
        return read_config(content, kind_of(stored) if stored else settings.version.name, sizes, spaces)
    return PiConfig.from_lerobot({"type": settings.version.name} | content, sizes)


def _stored_parameters(config: RunConfig) -> dict[str, int]:
    """Return the parameters in the files of `policy.path` by the names of PiNetwork; {}: there are no files."""
    if config.policy.path is None:
        return {}
    counts = named_parameters_in(Path(config.policy.path))
    return {full_name(name): count for name, count in counts.items()}


def num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy."""
    settings = config.policy.section(PiSettings)
    architecture = new_config(config, spaces.num_actions, spaces.num_proprio, numbered(1))
    return count_new(config, settings, "rlrun.policies.pi.network:PiNetwork", architecture)


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") in PROMPT_LENGTH or is_openpi(described)


SPEC = flow_spec(
    name="pi",
    section=PiSettings,
    recognizes=_recognizes,
    policy="rlrun.policies.pi.policy:PiPolicy",
    vlm_parts=("vision_tower", "multi_modal_projector", "language_model"),
    expert_part="gemma_expert",
    projections=(
        "state_proj",
        "action_in_proj",
        "action_out_proj",
        "time_mlp_in",
        "time_mlp_out",
        "action_time_mlp_in",
        "action_time_mlp_out",
    ),
    num_parameters=num_parameters,
    reads=(f"{PALIGEMMA_FOLDER}/*.json", "assets/*", "norm_stats.json"),
    to_lerobot="rlrun.policies.pi.folder:export_folder",
    shipped_as=lambda config: config.policy.section(PiSettings).version.name,
)
