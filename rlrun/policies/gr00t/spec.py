"""GR00T without torch: the keys of policy.gr00t, the architecture and size of a policy, and the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.faults import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, bounded
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.lerobot_config import PREPROCESSOR, LeRobotConfig, cameras_in, features, numbered
from rlrun.policies.flow.spec import MLP_RATIO, FlowSettings, count_new, flow_spec, stored_json
from rlrun.policies.gr00t.config import (
    BACKBONE_FOLDER,
    BASE_FOLDER,
    MERGED,
    BackboneSizes,
    Gr00tConfig,
    Gr00tSizes,
    Pictures,
    TextSizes,
    TowerSizes,
    TransformerSizes,
    in_order,
)
from rlrun.policies.spec import CONFIG_FILE
from rlrun.system.errors import RunError
from rlrun.system.local_files import read_json

PADDED = 24  # dimensions of state and actions at least
# LeRobot takes these for the defaults of an older version, and replaces them.
REPLACED = {"max_state_dim": 64, "max_action_dim": 32, "chunk_size": 50}
ASSUMED_WORDS = 64  # of the vocabulary, while the instructions are unknown
NEW_GRID = 24  # of learned positions, per side
DEEP_LAYERS = 3  # of the tower, at most, whose features the first layers of the language model get


@dataclass
class Gr00tSettings(FlowSettings):
    """Settings for policy.kind=gr00t; the sizes apply to a new policy."""

    # Blocks of the transformer of actions attend in turn to words, each other, pictures, each other.
    expert_num_layers: int = bounded(4, COUNT)
    expert_num_heads: int = bounded(4, COUNT)
    expert_head_dim: int = bounded(24, COUNT)
    feature_num_layers: int = bounded(1, COUNT)  # between the VLM and the actions


def new_config(
    config: RunConfig, num_actions: int, num_proprio: int, cameras: Sequence[str], vocab_size: int, image_token_id: int
) -> Gr00tConfig:
    """Return the architecture of a new policy."""
    settings = config.policy.section(Gr00tSettings)
    side = config.env.image_size
    chunk = config.policy.num_action_chunks
    num_state = _padded("max_state_dim", num_proprio)
    num_dims = _padded("max_action_dim", num_actions)
    sizes = Gr00tSizes(
        dit=TransformerSizes(settings.expert_num_layers, settings.expert_num_heads, settings.expert_head_dim),
        vl_self_attention=TransformerSizes(
            settings.feature_num_layers, settings.llm_num_heads, settings.llm_hidden_size // settings.llm_num_heads
        ),
        hidden_size=settings.expert_num_heads * settings.expert_head_dim,
        select_layer=settings.llm_num_layers,
        action_horizon=chunk,
        max_state_dim=num_state,
        max_action_dim=num_dims,
        max_num_embodiments=1,
        max_seq_len=chunk,
        backbone=_new_backbone(settings, vocab_size, image_token_id),
    )
    return Gr00tConfig(
        **features(cameras, side, num_proprio, num_actions),
        chunk_size=chunk,
        n_action_steps=chunk,
        max_state_dim=num_state,
        max_action_dim=num_dims,
        num_inference_timesteps=settings.num_flow_steps,
        base_model_path=BASE_FOLDER,
        embodiment=0,
        sizes=sizes,
        pictures=Pictures((side, side), None),
    )


def _padded(name: str, size: int) -> int:
    padded = max(PADDED, size)
    return padded + 1 if padded == REPLACED[name] else padded


def _new_backbone(settings: Gr00tSettings, vocab_size: int, image_token_id: int) -> BackboneSizes:
    head_dim = settings.llm_hidden_size // settings.llm_num_heads
    third = head_dim // 2 // 3
    text = TextSizes(
        hidden_size=settings.llm_hidden_size,
        intermediate_size=settings.llm_intermediate_size,
        num_hidden_layers=settings.llm_num_layers,
        num_attention_heads=settings.llm_num_heads,
        num_key_value_heads=1,
        head_dim=head_dim,
        vocab_size=vocab_size,
        rope_theta=10_000.0,
        mrope_section=(head_dim // 2 - 2 * third, third, third),
    )
    vision = TowerSizes(
        hidden_size=settings.vision_hidden_size,
        intermediate_size=MLP_RATIO * settings.vision_hidden_size,
        depth=settings.vision_num_layers,
        num_heads=settings.vision_num_heads,
        patch_size=settings.patch_size,
        num_position_embeddings=NEW_GRID**2,
        deepstack_visual_indexes=tuple(
            range(min(DEEP_LAYERS, settings.vision_num_layers - 1, settings.llm_num_layers))
        ),
    )
    return BackboneSizes(vision, text, image_token_id)


def gr00t_config(config: RunConfig, spaces: PlannedSpaces) -> Gr00tConfig:
    """Return the architecture; a folder that is not on this machine counts as the published one."""
    if config.policy.path is None:
        cameras = numbered(spaces.num_images)
        return new_config(config, spaces.num_actions, spaces.num_proprio, cameras, ASSUMED_WORDS, ASSUMED_WORDS - 1)
    backbone = BackboneSizes.from_transformers(stored_json(config, f"{BACKBONE_FOLDER}/{CONFIG_FILE}"))
    sizes = Gr00tSizes.from_nvidia(stored_json(config, f"{BASE_FOLDER}/{CONFIG_FILE}"), backbone)
    known = features(numbered(spaces.num_images), Pictures().side, spaces.num_proprio, spaces.num_actions)
    return Gr00tConfig.from_lerobot(known | stored_json(config, CONFIG_FILE), sizes)


def num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy."""
    sizes = spaces.num_actions, spaces.num_proprio, numbered(1), ASSUMED_WORDS, ASSUMED_WORDS - 1
    settings = config.policy.section(Gr00tSettings)
    return count_new(config, settings, "rlrun.policies.gr00t.network:Gr00tNetwork", new_config(config, *sizes))


def cameras_in_prompt(folder: Path) -> tuple[str, ...]:
    """Return the names by which a folder knows its cameras, in the order of the prompt; (): it does not say."""
    with suppress(
        OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration
    ):  # opening the policy raises the error
        steps = read_json(folder / f"{PREPROCESSOR}.json")["steps"]
        keys = next(step["config"].get("video_modality_keys") for step in steps if "embodiment_tag" in step["config"])
        described = LeRobotConfig.of_features(read_json(folder / CONFIG_FILE))
        ordered = LeRobotConfig(input_features=in_order(described.input_features, keys)).cameras
        given = dict(zip(described.cameras, cameras_in(folder), strict=True))  # renamed as the robot has them
        return tuple(given[name] for name in ordered)
    return ()


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") == "groot"


def conversion(described: Mapping[str, Any]) -> str | None:
    """Return how NVIDIA's own folder becomes LeRobot's; None: it is none of NVIDIA's."""
    named = [described.get("model_type"), *(described.get("architectures") or ())]
    if not any(str(name).lower().startswith("gr00t") for name in named):
        return None
    if "Gr00tN1d7" not in named:
        return "It is of another version than GR00T N1.7, the only one that rlrun has: train N1.7 on its data."
    return (
        "It has NVIDIA's own layout. Convert it with LeRobot 0.6: GrootPolicy.from_pretrained opens it, and "
        "save_pretrained of the policy and of both processors writes LeRobot's layout; docs/policies.md, Folders of "
        "GR00T, has the lines."
    )


def check_new(config: RunConfig) -> Faults:
    """Check the sizes of a new policy, beside the checks of all flow policies."""
    settings = config.policy.section(Gr00tSettings)
    section = "policy.gr00t."
    if config.policy.path is not None:
        return
    yield from not_multiple(
        "env.image_size", config.env.image_size, f"{section}patch_size, twice", MERGED * settings.patch_size
    )
    yield from not_multiple(
        f"{section}vision_hidden_size",
        settings.vision_hidden_size,
        f"{section}vision_num_heads, times 4",
        4 * settings.vision_num_heads,
    )
    if config.policy.num_action_chunks == REPLACED["chunk_size"]:
        yield RunError(
            "LeRobot would open the policy with another chunk.",
            key="policy.num_action_chunks",
            value=config.policy.num_action_chunks,
            cause="Its GR00T takes a chunk_size of 50 for that of an older version, and makes it 40.",
            remedy="Take another number.",
        )


SPEC = flow_spec(
    name="gr00t",
    section=Gr00tSettings,
    recognizes=_recognizes,
    policy="rlrun.policies.gr00t.policy:Gr00tPolicy",
    vlm_parts=("visual", "language_model"),
    expert_part="action_head",
    projections=("state_encoder", "action_encoder", "action_decoder"),
    num_parameters=num_parameters,
    reads=(f"{BASE_FOLDER}/*", f"{BACKBONE_FOLDER}/*.json"),
    conversion=conversion,
    to_lerobot="rlrun.policies.gr00t.folder:export_folder",
    trained_whole=("action_encoder", "action_decoder"),
    cameras=cameras_in_prompt,
    check_own=check_new,
    shipped_as=lambda config: "gr00t",
)
