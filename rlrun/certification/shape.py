"""The shape of a card: which parts it has, of which types; a foreign card is compared before anything reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

MAX_COUNT = 1 << 53  # what JSON holds exactly
FIRST_CARD = datetime(2026, 11, 1, tzinfo=UTC)  # no card is older
CLOCK_DIFFERENCE = timedelta(days=1)  # between the clocks of two machines
COUNTED = {"successes": int, "episodes": int, "success_rate": float, "low": float, "high": float}


@dataclass(frozen=True)
class _Optional:
    shape: Any


SHAPE = {
    "made_by": str,
    "made_at": str,
    "policy": {"folder": str, "kind": str, "sha256": str},
    "rule": {"num_episodes": int, "half_width": _Optional(float), "temperature": float, "fixed_at": str},
    "result": {**COUNTED, "num_void": int, "num_starts": int},
    "tasks": [{"task": str, **COUNTED}],
    "perturbed": [{"perturbation": str, **COUNTED, "lost": int, "won": int}],
    "training": _Optional(
        {
            "run": str,
            "steps": int,
            "seed": _Optional(int),
            "num_starts": int,
            "num_worlds": int,
            "starts_sha256": str,
            "first_policy": str,
            "is_first_policy_known": bool,
            "unrecorded": str,
        }
    ),
    "selection": _Optional(
        {
            "num_evaluations": int,
            "first_seed": _Optional(int),
            "last_seed": _Optional(int),
            "chosen": str,
            "cards_before": int,
            "earlier": [{"step": str, "temperature": str, "rule": str, "outcome": str, "card": str}],
        }
    ),
    "noise": _Optional({"num_seeds": int, "mean": float, "std": float, "on": str}),
    "splits": {"train": str, "validation": str, "test": str, "trained_on_test": str},
    "deviations": [str],
    "untested": dict,
    "world": {"fingerprints": [dict], "env": {"simulator": str}},
    "waived": [{"rule": str, "sentence": str}],
    "episodes": [
        {"seed": int, "start": str, "success": bool, "return": float, "control_steps": int, "instruction": str}
    ],
    "seal": {"sha256": str, "mark": str},
}


def check(card: Any) -> None:
    """Raise ValueError, with the place, if `card` does not have the shape of a card."""
    _check(card, SHAPE, "the card")
    if (card["training"] is None) != (card["selection"] is None):
        raise ValueError("it has one of training and selection without the other")
    for name, value in card["untested"].items():
        _check(value, str, f"untested.{name}")


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, _Optional):
        if value is not None:
            _check(value, shape.shape, where)
    elif isinstance(shape, Mapping):
        _require(isinstance(value, Mapping), where, "an object")
        for name, part in shape.items():
            _require(name in value, f"{where}: {name}", "there")
            _check(value[name], part, name if where == "the card" else f"{where}.{name}")
    elif isinstance(shape, list):
        _require(isinstance(value, list), where, "a list")
        for number, item in enumerate(value):
            _check(item, shape[0], f"{where}[{number}]")
    elif shape is int:
        _require(type(value) is int and 0 <= value <= MAX_COUNT, where, "a whole number from 0 on")
    elif shape is float:
        _require(type(value) in (int, float) and abs(value) <= MAX_COUNT and isfinite(value), where, "a finite number")
    else:
        _require(isinstance(value, shape), where, {str: "text", bool: "true or false", dict: "an object"}[shape])


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where} is not {what}")


def fault_of_times(card: Mapping[str, Any]) -> str:
    """Return the fault of the times of a card; "": made after its rule was fixed, not in the future."""
    times = {"rule.fixed_at": card["rule"]["fixed_at"], "made_at": card["made_at"]}
    moments = {}
    for name, text in times.items():
        try:
            moments[name] = datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            return f"its {name}, {text}, is no time"
        if not FIRST_CARD <= moments[name] <= datetime.now(UTC) + CLOCK_DIFFERENCE:
            return f"its {name} is {text}, when no rlrun could make a card"
    return "" if moments["rule.fixed_at"] <= moments["made_at"] else "it was made before its rule was fixed"
