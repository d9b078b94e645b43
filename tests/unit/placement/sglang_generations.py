"""What SGLang's releases make of the variables of its memory check; one branch a generation."""

from __future__ import annotations

from packaging.version import Version

from rlrun.placement.node_environment import DEAD_SWITCH, OLD_SWITCH, SWITCH

TRAPS = [
    {},
    {OLD_SWITCH: "True"},
    {DEAD_SWITCH: "1"},
    {OLD_SWITCH: "", SWITCH: "0"},
]  # of a shell


def raises_on_imbalance(version: str, environment: dict[str, str]) -> bool:
    """In a process that inherits `environment` from one that has imported SGLang: there the check runs.

    tests/integration/test_sglang_releases.py compares this with the releases themselves.
    """
    v, old, new, alias = Version(version), *(environment.get(name) for name in (OLD_SWITCH, SWITCH, DEAD_SWITCH))
    if v < Version("0.4.5.post2"):
        return True
    if v < Version("0.5.7"):
        return (old or "").lower() not in ("true", "1")
    if v < Version("0.5.18"):  # the deprecated name is copied over, uninverted; anything unreadable means True
        new = old if old is not None else new
    elif v < Version("0.5.21") and (alias or old) is not None:
        return (alias or old or "").lower() not in ("true", "1")
    return (new or "1").lower() not in ("0", "false")


def applied(environment: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    """Return `environment` after a worker has set and removed variables."""
    changed = environment | {name: value for name, value in changes.items() if value is not None}
    return {name: value for name, value in changed.items() if changes.get(name, value) is not None}
