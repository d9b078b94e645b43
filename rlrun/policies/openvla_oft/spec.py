"""OpenVLA-OFT without torch: the keys of policy.openvla_oft, the size of a policy, and the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlrun.config.checks import Faults
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, Range, Section, bounded, named
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.folders import readable
from rlrun.policies.size import PolicySize, Stack
from rlrun.policies.spec import CONFIG_FILE, LoraParts, PolicySpec, check_head_sizes
from rlrun.system.local_files import read_json


class ActionBounds(Enum):
    q99 = "q99"  # q01..q99 of the demonstrations map to -1..1 (OpenVLA on LIBERO and bridge)
    minmax = "minmax"  # min..max of the demonstrations map to -1..1 (ALOHA)


@dataclass
class OpenVLAOFTSettings(Section):
    """Settings for policy.kind=openvla_oft; the sizes apply to a new policy."""

    unnorm_key: str = named("rlrun")  # entry of norm_stats that un-normalizes actions
    max_prompt_length: int | None = bounded(None, Range(4))  # tokens; None: the longest instruction's length, else 50
    has_action_queries: bool = True  # learned placeholders; False: zeros, as in official checkpoints
    has_stop_token: bool = False  # append the stop token after the placeholders, as OpenVLA-OFT's fine-tuning does
    action_bounds: ActionBounds = ActionBounds.q99
    center_crop: bool = False  # crop 0.9 of the area, as OpenVLA's evaluation does
    patch_size: int = bounded(16, COUNT)
    vision_hidden_size: int = bounded(64, COUNT)  # width of each of the two towers
    vision_num_layers: int = bounded(3, Range(2))  # features are taken before the last block
    vision_num_heads: int = bounded(4, COUNT)
    llm_hidden_size: int = bounded(128, COUNT)
    llm_intermediate_size: int = bounded(256, COUNT)
    llm_num_layers: int = bounded(2, COUNT)
    llm_num_heads: int = bounded(4, COUNT)


NUM_BINS = 256
_WORDS = 256
_PROMPT_TOKENS = 32  # if no length is configured
_OFFICIAL_PROMPT_TOKENS = 50
_OPENVLA_7B = 7_541_237_184  # parameters, for a path that is not on this machine, as when only a plan is made
_LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32064}
_TOWERS_7B = (  # entries that official files lack
    {"hidden_size": 1024, "num_layers": 24, "mlp_size": 4096, "has_layer_scale": True, "num_register_tokens": 4},
    {"hidden_size": 1152, "num_layers": 27, "mlp_size": 4304},
)
_TOWER_MLP_RATIO = 4  # of a new policy


def policy_size(config: RunConfig, spaces: PlannedSpaces, num_parameters: int) -> PolicySize:
    """Return the size by `policy.path`, else by the settings of a new policy."""
    policy, own = config.policy, config.policy.section(OpenVLAOFTSettings)
    num_action_tokens = policy.num_action_chunks * spaces.num_actions
    text, towers, (side, patch) = _described(config)
    patches = (side // patch) ** 2
    prompt = own.max_prompt_length or (_PROMPT_TOKENS if policy.path is None else _OFFICIAL_PROMPT_TOKENS)
    length = spaces.num_images * patches + prompt + num_action_tokens
    length += int(policy.use_proprio) + int(own.has_stop_token)
    stacks = tuple(_tower(tower, spaces.num_images, patches) for tower in towers)
    width = text["hidden_size"]
    llm = Stack(width, text["intermediate_size"], text["num_hidden_layers"], length, "language_model", is_gated=True)
    vision = sum(stack.width for stack in stacks)
    return PolicySize(
        num_parameters,
        (*stacks, llm),
        num_pixels=2 * spaces.num_images * side**2 * 3,
        num_action_tokens=num_action_tokens,
        new_parameters=0 if policy.path is None else _new_parameters(config, width, spaces),
        dead_parameters=sum(_dead_parameters(tower, stack) for tower, stack in zip(towers, stacks, strict=True)),
        num_bins=NUM_BINS,
        whole_parts={"projector": _projector(vision, width)},
    )


def num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy, or of the 7B policy if `policy.path` is not on this machine (a plan only).

    The vocabulary of the instructions is not known yet, and counts as 256 words beside the action bins.
    """
    if config.policy.path is not None:
        return _OPENVLA_7B
    text, towers, (_, patch) = _described(config)
    width = text["hidden_size"]
    llm = Stack(width, text["intermediate_size"], text["num_hidden_layers"], 0, "language_model", is_gated=True)
    total = llm.num_layers * llm.block_parameters + width + 2 * (_WORDS + NUM_BINS + 1) * width
    for tower in towers:
        stack, inner = _tower(tower, 1, 0), tower["hidden_size"]
        total += stack.num_layers * stack.block_parameters + _dead_parameters(tower, stack)
        total += (3 * patch**2 + 1 + (config.env.image_size // patch) ** 2) * inner
    vision = sum(tower["hidden_size"] for tower in towers)
    return total + _projector(vision, width) + _new_parameters(config, width, spaces)


def _projector(vision: int, width: int) -> int:
    return 4 * vision * (vision + 1) + width * (4 * vision + 1) + width * (width + 1)


def _tower(tower: dict, num_images: int, patches: int) -> Stack:
    prefix = tower.get("num_register_tokens", 0) + int(
        tower.get("has_class_token", tower.get("has_layer_scale", False))
    )
    return Stack(
        tower["hidden_size"],
        tower["mlp_size"],
        tower["num_layers"] - 1,
        num_images * (patches + prefix),
        "vision_backbone",
        has_layer_scale=tower.get("has_layer_scale", False),
    )


def _dead_parameters(tower: dict, stack: Stack) -> int:
    """Return the unread parameters: the last block and its norm; the official second tower also has a pooling head."""
    pool = 0
    if tower.get("has_attention_pool", not stack.has_layer_scale and tower["hidden_size"] == 1152):
        pool = stack.block_parameters - stack.width
    return stack.block_parameters + 2 * stack.width + pool


def _new_parameters(config: RunConfig, width: int, spaces: PlannedSpaces) -> int:
    """Return the parameters of the value head, the projector of proprioception and the learned placeholders."""
    policy = config.policy
    sizes = [width, *policy.value_hidden_sizes]
    head = sum((a + 1) * b for a, b in pairwise(sizes)) + sizes[-1]
    projector = (spaces.num_proprio + 1) * width + (width + 1) * width if policy.use_proprio else 0
    num_queries = policy.num_action_chunks * spaces.num_actions
    return head + projector + num_queries * width * int(policy.section(OpenVLAOFTSettings).has_action_queries)


def _described(config: RunConfig) -> tuple[dict, list[dict], tuple[int, int]]:
    """Return (language model, towers, (image side, patch side) in pixels); a path that is not here counts as a 7B."""
    policy, own = config.policy, config.policy.section(OpenVLAOFTSettings)
    if policy.path is None:
        width = own.vision_hidden_size
        tower = {"hidden_size": width, "num_layers": own.vision_num_layers, "mlp_size": _TOWER_MLP_RATIO * width}
        first = tower | {"has_layer_scale": True, "num_register_tokens": 1}
        text = {"hidden_size": own.llm_hidden_size, "intermediate_size": own.llm_intermediate_size}
        text["num_hidden_layers"] = own.llm_num_layers
        return text, [first, tower], (config.env.image_size, own.patch_size)
    file = Path(policy.path) / CONFIG_FILE
    described = readable(file, lambda: read_json(file)) if file.is_file() else {}
    towers = described.get("vision_towers") or list(_TOWERS_7B)
    sizes = described.get("image_sizes") or [224]
    return _LLAMA_7B | described.get("text_config", {}), towers, (sizes[0], described.get("patch_size", 14))


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "openvla"


def check_sizes(config: RunConfig) -> Faults:
    """Check the sizes of a new policy, see `check_head_sizes`."""
    return check_head_sizes(config, "policy.openvla_oft.", config.policy.section(OpenVLAOFTSettings))


POLICY = "rlrun.policies.openvla_oft.policy:VlaPolicy"
ADAPTABLE_PARTS = ("language_model", "vision_backbone", "projector", "proprio_projector", "value_head")
SPEC = PolicySpec(
    name="openvla_oft",
    section=OpenVLAOFTSettings,
    recognizes=_recognizes,
    policy=POLICY,
    from_demonstrations=f"{POLICY}.from_demonstrations",
    published=f"{POLICY}.published",
    check=check_sizes,
    observes=("images", "proprio", "instruction"),
    backends=("hf", "sglang"),
    has_attention=True,
    lora=LoraParts(
        adaptable=ADAPTABLE_PARTS,
        whole=(*ADAPTABLE_PARTS, "action_queries"),
        targets=("language_model", "vision_backbone"),
        trained_whole=("value_head", "projector", "proprio_projector", "action_queries"),
    ),
    num_parameters=num_parameters,
    size=policy_size,
)
