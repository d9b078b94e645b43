"""The spec of SmolVLA, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.checks import Faults
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.lerobot_config import cameras_in
from rlrun.policies.flow.openers import Openers
from rlrun.policies.flow.settings import check_flow
from rlrun.policies.smolvla.settings import SmolVLASettings, policy_size
from rlrun.policies.spec import DemonstratedTask, LeRobotFolder, PolicySpec, check_head_sizes

if TYPE_CHECKING:
    from rlrun.policies.flow.opening import FlowFolder
    from rlrun.policies.smolvla.policy import SmolVLAPolicy


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") == "smolvla"


def _read(folder: Path, run: RunConfig | None) -> FlowFolder[SmolVLAPolicy]:
    from rlrun.policies.smolvla.policy import smolvla_in  # importing transformers takes seconds

    return smolvla_in(folder, run)


def _from_demonstrations(config: RunConfig, task: DemonstratedTask) -> SmolVLAPolicy:
    from rlrun.policies.smolvla.policy import new_policy

    return new_policy(config, task)


def _num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy, or of the released SmolVLA for `policy.path`."""
    if config.policy.path is not None:
        return RELEASED_PARAMETERS
    from rlrun.policies.smolvla.policy import num_parameters

    return num_parameters(config, spaces.num_actions, spaces.num_proprio)


RELEASED_PARAMETERS = 450_046_176  # of the network on SmolVLM2-500M, with the unread head over words


def _to_lerobot(folder: Path, out: Path, vlm_name: str | None) -> LeRobotFolder:
    from rlrun.policies.smolvla.folder import export_folder

    return export_folder(folder, out, vlm_name)


VLM_PARTS = ("vision_model", "connector", "text_model")
ADAPTABLE_PARTS = (*VLM_PARTS, "lm_expert")
PROJECTIONS = ("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out")
OPENERS = Openers(_read)


def check(config: RunConfig) -> Faults:
    """Check sampling, adapters, and the sizes of a new policy."""
    own = config.policy.section(SmolVLASettings)
    yield from check_flow(config, own, VLM_PARTS)
    yield from check_head_sizes(config, "policy.smolvla.", own)


SPEC = PolicySpec(
    name="smolvla",
    section=SmolVLASettings,
    recognizes=_recognizes,
    open=OPENERS.whole,
    open_to_shard=OPENERS.to_shard,
    open_with_adapters=OPENERS.with_adapters,
    from_demonstrations=_from_demonstrations,
    check=check,
    observes=("images", "proprio", "instruction"),
    parts=(*ADAPTABLE_PARTS, *PROJECTIONS, "value_head", "noise_head"),
    adaptable_parts=ADAPTABLE_PARTS,
    num_parameters=_num_parameters,
    cameras=cameras_in,
    size=policy_size,
    to_lerobot=_to_lerobot,
)
