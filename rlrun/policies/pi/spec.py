"""The spec of pi0 and pi0.5, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.faults import Faults
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.settings import check_noise
from rlrun.policies.head_sizes import check_head_sizes
from rlrun.policies.pi.config import PROMPT_LENGTH
from rlrun.policies.pi.openpi import is_openpi
from rlrun.policies.pi.settings import PiSettings
from rlrun.policies.pi.size import PUBLISHED_PARAMETERS, policy_size
from rlrun.policies.spec import DemonstratedTask, PolicySpec

if TYPE_CHECKING:
    import torch

    from rlrun.policies.pi.policy import PiPolicy
    from rlrun.policies.stored_weights import StoredWeights


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") in PROMPT_LENGTH or is_openpi(described)


def _open(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> PiPolicy:
    from rlrun.policies.flow.opening import open_whole  # importing transformers takes seconds
    from rlrun.policies.pi.opening import pi_in

    return open_whole(pi_in(folder, run), dtype, device, run)


def _open_to_shard(folder: Path, run: RunConfig) -> tuple[PiPolicy, StoredWeights]:
    from rlrun.policies.flow.opening import open_to_shard
    from rlrun.policies.pi.opening import pi_in

    return open_to_shard(pi_in(folder, run), run)


def _from_demonstrations(config: RunConfig, task: DemonstratedTask) -> PiPolicy:
    from rlrun.policies.pi.new_policy import new_policy

    return new_policy(config, task)


def _num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy, or of a released one for `policy.path`."""
    if config.policy.path is not None:
        return PUBLISHED_PARAMETERS[config.policy.section(PiSettings).version.name]
    from rlrun.policies.pi.new_policy import num_parameters

    return num_parameters(config, spaces.num_actions, spaces.num_proprio)


def check_sizes(config: RunConfig) -> Faults:
    """Check the range of learned noise, and the sizes of a new policy."""
    own = config.policy.section(PiSettings)
    yield from check_noise("policy.pi.", own)
    yield from check_head_sizes(config, "policy.pi.", own)


SPEC = PolicySpec(
    name="pi",
    section=PiSettings,
    recognizes=_recognizes,
    open=_open,
    open_to_shard=_open_to_shard,
    from_demonstrations=_from_demonstrations,
    check=check_sizes,
    observes=("images", "proprio", "instruction"),
    num_parameters=_num_parameters,
    size=policy_size,
)
