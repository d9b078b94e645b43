"""The spec of SmolVLA, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.faults import Faults
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.settings import check_noise
from rlrun.policies.head_sizes import check_head_sizes
from rlrun.policies.smolvla.settings import SmolVLASettings
from rlrun.policies.smolvla.size import policy_size
from rlrun.policies.spec import DemonstratedTask, PolicySpec

if TYPE_CHECKING:
    import torch

    from rlrun.policies.smolvla.policy import SmolVLAPolicy
    from rlrun.policies.stored_weights import StoredWeights


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") == "smolvla"


def _open(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> SmolVLAPolicy:
    from rlrun.policies.flow.opening import open_whole  # importing transformers takes seconds
    from rlrun.policies.smolvla.opening import smolvla_in

    return open_whole(smolvla_in(folder, run), dtype, device, run)


def _open_to_shard(folder: Path, run: RunConfig) -> tuple[SmolVLAPolicy, StoredWeights]:
    from rlrun.policies.flow.opening import open_to_shard
    from rlrun.policies.smolvla.opening import smolvla_in

    return open_to_shard(smolvla_in(folder, run), run)


def _from_demonstrations(config: RunConfig, task: DemonstratedTask) -> SmolVLAPolicy:
    from rlrun.policies.smolvla.new_policy import new_policy

    return new_policy(config, task)


def _num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy, or of the released SmolVLA for `policy.path`."""
    if config.policy.path is not None:
        return RELEASED_PARAMETERS
    from rlrun.policies.smolvla.new_policy import num_parameters

    return num_parameters(config, spaces.num_actions, spaces.num_proprio)


RELEASED_PARAMETERS = 450_046_176  # of the network on SmolVLM2-500M, with the unread head over words


def check_sizes(config: RunConfig) -> Faults:
    """Check the range of learned noise, and the sizes of a new policy."""
    own = config.policy.section(SmolVLASettings)
    yield from check_noise("policy.smolvla.", own)
    yield from check_head_sizes(config, "policy.smolvla.", own)


SPEC = PolicySpec(
    name="smolvla",
    section=SmolVLASettings,
    recognizes=_recognizes,
    open=_open,
    open_to_shard=_open_to_shard,
    from_demonstrations=_from_demonstrations,
    check=check_sizes,
    observes=("images", "proprio", "instruction"),
    num_parameters=_num_parameters,
    size=policy_size,
)
