"""SGLang's memory check is switched by another variable, in another sense, in every generation of versions."""

from __future__ import annotations

import os

import pytest
from packaging.version import Version

from rlrun.cluster import sglang_switch
from rlrun.cluster.sglang_switch import DEAD_SWITCH, OLD_SWITCH, SWITCH, installed_version, switch_environment
from rlrun.cluster.worker_class import make_worker
from rlrun.config.errors import RunError

VERSIONS = ["0.4.4", "0.4.5.post1", "0.4.5.post2", "0.4.6.post5", "0.5.2", "0.5.3", "0.5.6.post2", "0.5.7", "0.5.10"]
VERSIONS += ["0.5.12", "0.5.17", "0.5.18", "0.5.20", "0.5.21", "0.5.23", "0.6.0"]


def raises_on_imbalance(version: str, environment: dict[str, str]) -> bool:
    """What the released packages do, in a process that inherits `environment`; measured, one branch a generation."""
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


@pytest.mark.parametrize("trap", [{}, {OLD_SWITCH: "True"}, {DEAD_SWITCH: "1"}, {OLD_SWITCH: "", SWITCH: "0"}])
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_does_what_is_meant(version: str, is_kept: bool, trap: dict[str, str]) -> None:
    """Whatever the shell that started Ray exported."""
    if not is_kept and Version(version) < Version("0.4.5.post2"):
        with pytest.raises(RunError, match="always checks"):
            switch_environment(Version(version), is_kept)
        return
    environment = dict(trap)
    for name, value in switch_environment(Version(version), is_kept).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    assert raises_on_imbalance(version, environment) == is_kept


def test_the_traps_are_traps() -> None:
    """Without the removal, the common recipes do the opposite in some version."""
    assert raises_on_imbalance("0.5.12", {OLD_SWITCH: "True", SWITCH: "0"})
    assert not raises_on_imbalance("0.5.6.post2", {OLD_SWITCH: "True"})
    assert raises_on_imbalance("0.5.23", {OLD_SWITCH: "True", DEAD_SWITCH: "True"})


@pytest.mark.parametrize(
    ("installed", "reads_new", "taken"),
    [
        ("0.5.23", True, "0.5.23"),
        ("0.5.7.dev12+g0abc", True, "0.5.7"),
        ("0.0.0.dev1", True, "0.5.7"),
        ("0.5.6.dev3+gdef", False, "0.5.6.dev3+gdef"),
    ],
)
def test_builds_from_git_are_known_by_their_source(
    monkeypatch: pytest.MonkeyPatch, installed: str, reads_new: bool, taken: str
) -> None:
    monkeypatch.setattr(sglang_switch.metadata, "version", lambda package: installed)
    monkeypatch.setattr(sglang_switch, "_reads_new_switch", lambda: reads_new)
    assert installed_version() == Version(taken)


def test_removed_variables_are_gone_before_the_worker_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not blank: gone."""
    seen: dict[str, str] = {}

    class Worker:
        def __init__(self, *_: object) -> None:
            seen.update(os.environ)

    monkeypatch.setenv(OLD_SWITCH, "True")
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(
        "rlrun.cluster.worker_class.importlib.import_module", lambda name: type("M", (), {"RolloutWorker": Worker})
    )
    make_worker("rollout", 0, None, switch_environment(Version("0.5.12"), is_check_kept=False))
    monkeypatch.setenv(SWITCH, "0")  # so that monkeypatch takes it away afterwards
    assert OLD_SWITCH not in seen and seen[SWITCH] == "0"
