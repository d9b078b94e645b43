"""Ends, success and scores of episodes, from OmniGibson's info."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlrun.envs.omnigibson.contract import TIMEOUT


def q_score(now: Sequence[Sequence[bool]], at_reset: Sequence[Sequence[bool]], is_success: bool) -> float:
    """Return the challenge's partial score: 1 on success, else the largest share of newly true literals of an option.

    now, at_reset: for every ground option of the goal, which literals hold. Example: 2/3 if two of three cans are in
    the bin and none was at the reset.
    """
    if is_success:
        return 1.0
    shares = [
        sum(holds and not held for holds, held in zip(option, before, strict=True)) / len(option)
        for option, before in zip(now, at_reset, strict=True)
        if option
    ]
    return float(max(shares, default=0.0))


def is_success(info: dict[str, Any]) -> bool:
    """Return whether the goal is satisfied."""
    return bool(info["done"]["success"])


def is_terminated(info: dict[str, Any]) -> bool:
    """Return whether the task itself has ended: by any condition except the time limit, which only truncates."""
    conditions = info["done"].get("termination_conditions", {})
    return is_success(info) or any(bool(state["done"]) for name, state in conditions.items() if name != TIMEOUT)


def step_info(info: dict[str, Any], num_steps: int, is_truncated: bool) -> dict[str, Any]:
    """Return the parts of OmniGibson's info that rlrun keeps, as plain data, with rlrun's step count and time limit."""
    done, reward = info["done"], info.get("reward", {})
    goal = done.get("goal_status", {})
    conditions = {
        name: {"done": bool(state["done"]), "success": bool(state["success"])}
        for name, state in done.get("termination_conditions", {}).items()
    }
    conditions[TIMEOUT] = {"done": is_truncated, "success": False}
    breakdown = {name: float(value) for name, value in reward.get("reward_breakdown", {}).items()}
    return {
        "reward": {**{name: {} for name in breakdown}, "reward_breakdown": breakdown},
        "done": {
            "success": is_success(info),
            "termination_conditions": conditions,
            "goal_status": {name: [int(i) for i in goal.get(name, ())] for name in ("satisfied", "unsatisfied")},
        },
        "episode_length": num_steps,
    }
