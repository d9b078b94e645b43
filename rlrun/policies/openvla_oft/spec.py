"""OpenVLA-OFT without torch: the keys of policy.openvla_oft, the size of a new policy, and the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from rlrun.config.faults import Faults
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, Range, Section, bounded, named
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.action_bounds import NUM_BINS
from rlrun.policies.spec import LoraParts, PolicySpec, check_head_sizes

_WORDS = 256
STATISTICS_FILE = "dataset_statistics.json"  # beside config.json
POLICY = "rlrun.policies.openvla_oft.policy:VlaPolicy"
ADAPTABLE_PARTS = ("language_model", "vision_backbone", "projector", "proprio_projector", "value_head")


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


def num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy.

    The vocabulary of the instructions is not known yet, and counts as 256 words beside the action bins.
    """
    settings = config.policy.section(OpenVLAOFTSettings)
    width = settings.llm_hidden_size
    vision = settings.vision_hidden_size
    patch = settings.patch_size
    llama = settings.llm_num_layers * width * (4 * width + 3 * settings.llm_intermediate_size + 2)
    words = 2 * (_WORDS + NUM_BINS + 1) * width + width
    patches = 3 * patch**2 + 1 + (config.env.image_size // patch) ** 2
    towers = 2 * (settings.vision_num_layers * vision * (12 * vision + 13) + 2 * vision + patches * vision)
    scales = 2 * vision * settings.vision_num_layers  # of the first tower
    return llama + words + towers + scales + _projector(2 * vision, width) + _new_parameters(config, width, spaces)


def _projector(vision: int, width: int) -> int:
    return 4 * vision * (vision + 1) + width * (4 * vision + 1) + width * (width + 1)


def _new_parameters(config: RunConfig, width: int, spaces: PlannedSpaces) -> int:
    """Return the parameters of the value head, the projector of proprioception and the learned placeholders."""
    policy = config.policy
    sizes = [width, *policy.value_hidden_sizes]
    head = sum((a + 1) * b for a, b in pairwise(sizes)) + sizes[-1]
    projector = (spaces.num_proprio + 1) * width + (width + 1) * width if policy.use_proprio else 0
    num_queries = policy.num_action_chunks * spaces.num_actions
    return head + projector + num_queries * width * int(policy.section(OpenVLAOFTSettings).has_action_queries)


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == "openvla"


def check_sizes(config: RunConfig) -> Faults:
    """Check the sizes of a new policy, see `check_head_sizes`."""
    return check_head_sizes(config, "policy.openvla_oft.", config.policy.section(OpenVLAOFTSettings))


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
    reads=("dataset_statistics.json", "preprocessor_config.json", "processor_config.json"),
)
