"""The terms of an own reward, as `env.reward` names them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.config.faults import Faults
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.system.errors import RunError

KEY = "env.reward"
SIMULATOR = "simulator"  # name of the reward that the simulator gave, beside the terms
REMEDY = (
    "Name module:FUNCTION, or terms: {reach: {function: module:FUNCTION, weight: 1.0}}; docs/howto/rewards.md. null is "
    "the simulator's own reward, whose mode is a key of the simulator's section."
)
_LOCATION = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_][\w.]*")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEYS = {"function", "weight"}


@dataclass(frozen=True)
class RewardTerm:
    """One term. Example: RewardTerm("reach", "my_rewards:distance", -1.0)."""

    name: str  # of its metric, reward/NAME
    location: str  # module:FUNCTION
    weight: float = 1.0


def reward_terms(env: EnvConfig) -> tuple[RewardTerm, ...]:
    """Return the terms of `env.reward`; (): it is the simulator's own. Raises ValueError, with a sentence."""
    value = env.reward
    if value is None:
        return ()
    if isinstance(value, str):
        return (RewardTerm(_location(value).rpartition(":")[2].rpartition(".")[2], value),)
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{value!r} is neither module:FUNCTION nor a mapping of terms")
    return tuple(_term(name, entry) for name, entry in value.items())


def locations(value: Any) -> Iterator[str]:
    """Yield each module:FUNCTION that a value of `env.reward` names, whatever else is wrong with it."""
    entries = value.values() if isinstance(value, Mapping) else [value]
    for entry in entries:
        location = entry.get("function") if isinstance(entry, Mapping) else entry
        if isinstance(location, str) and _LOCATION.fullmatch(location):
            yield location


def _term(name: Any, entry: Any) -> RewardTerm:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == SIMULATOR:
        why = "it is that of the simulator's reward" if name == SIMULATOR else "it has letters, digits, `_`, `-`, `.`"
        raise ValueError(f"{name!r} is no name of a term: {why}")
    if isinstance(entry, str):
        return RewardTerm(name, _location(entry))
    if not isinstance(entry, Mapping) or "function" not in entry or not set(entry) <= _KEYS:
        raise ValueError(f"the term {name} is {entry!r}, and not {{function: module:FUNCTION, weight: 1.0}}")
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise ValueError(f"the weight of the term {name} is {weight!r}, which is no finite number")
    return RewardTerm(name, _location(entry["function"]), float(weight))


def _location(value: Any) -> str:
    if not isinstance(value, str) or not _LOCATION.fullmatch(value):
        raise ValueError(f"{value!r} is not module:FUNCTION")
    return value


def own_reward_has_terms(config: RunConfig) -> Faults:
    """The key `env.reward` names functions, each of which has a name and a weight."""
    try:
        reward_terms(config.env)
    except ValueError as error:
        yield RunError(
            "env.reward names no reward.", key=KEY, value=config.env.reward, cause=f"{error}.", remedy=REMEDY
        )
