"""The progress of a run: the driver's counters, which each checkpoint stores."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

from rlrun.system.errors import ExitStatus, RunError

_NEVER = -1.0  # a success rate that was not measured yet


@dataclass
class Progress:
    """The counters of the driver."""

    step: int = 0  # training steps done
    policy_version: int = 0
    env_steps: int = 0
    elapsed_s: float = 0.0
    best_success_rate: float = _NEVER
    first_success_rate: float = _NEVER
    base_policy: str = ""  # folder of the weights that do not train, for rollout workers with adapters
    is_evaluation_owed: bool = False  # a signal interrupted the evaluation of this step

    @classmethod
    def read(cls, stored: dict[str, object], checkpoint: Path) -> Progress:
        """Return the counters from a checkpoint's state.json. Raises RunError if counters are missing or wrong."""
        faults = _faults(stored)
        if not faults:
            return cls(**stored)  # type: ignore[arg-type]  # the names were checked above
        raise RunError(
            f"The counters in {checkpoint / 'state.json'} are damaged, or of another version of rlrun.",
            key="checkpoint.resume",
            value=str(checkpoint),
            cause="\n".join(faults),
            remedy="Take another checkpoint, or start in a new output_dir.",
            exit_status=ExitStatus.bad_input,
        )


def _faults(stored: dict[str, object]) -> list[str]:
    defaults = {field.name: field.default for field in fields(Progress)}
    faults = [f"{name} is missing" for name in defaults.keys() - stored.keys()]
    faults += [f"{name} is unknown" for name in stored.keys() - defaults.keys()]
    if faults:
        return sorted(faults)
    kinds = {name: (int, float) if type(default) is float else (type(default),) for name, default in defaults.items()}
    faults = [f"{name} is {stored[name]!r}" for name, kind in kinds.items() if type(stored[name]) not in kind]
    if not faults:
        lowest = {
            name: _NEVER if default == _NEVER else 0 for name, default in defaults.items() if name != "base_policy"
        }
        faults = [
            f"{name} is {stored[name]}" for name, least in lowest.items() if not cast(float, stored[name]) >= least
        ]
        if stored["policy_version"] != stored["step"]:
            faults.append(f"policy_version is {stored['policy_version']} after {stored['step']} steps")
    return faults
