"""SGLang's memory check is switched by another variable, in another sense, in every generation of versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.version import Version

from rlrun.config.schema import RunConfig
from rlrun.controller.local_workers import make_worker
from rlrun.placement.node_environment import DEAD_SWITCH, OLD_SWITCH, SWITCH, installed_version, switch_environment
from rlrun.system.errors import RunError
from tests.unit.placement.sglang_generations import TRAPS, applied, raises_on_imbalance

VERSIONS = ["0.4.4", "0.4.5.post1", "0.4.5.post2", "0.4.6.post5", "0.5.2", "0.5.3", "0.5.6.post2", "0.5.7", "0.5.10"]
VERSIONS += ["0.5.12", "0.5.17", "0.5.18", "0.5.20", "0.5.21", "0.5.23", "0.6.0"]


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_does_what_is_meant(version: str, is_kept: bool) -> None:
    """Whatever the shell that started Ray exported."""
    if not is_kept and Version(version) < Version("0.4.5.post2"):
        with pytest.raises(RunError, match="always checks"):
            switch_environment(Version(version), is_kept)
        return
    switched = switch_environment(Version(version), is_kept)
    assert [trap for trap in TRAPS if raises_on_imbalance(version, applied(trap, switched)) != is_kept] == []


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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, reads_new: bool, taken: str
) -> None:
    """A folder with the two things that count: metadata, and the source that reads the switch."""
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "srt" / "environ.py").write_text(SWITCH if reads_new else OLD_SWITCH)
    described = tmp_path / "sglang-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {installed}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installed_version() == Version(taken)
    assert installed_version("/nowhere/bin/python") is None


def test_removed_variables_are_gone_before_the_worker_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not blank: gone."""
    seen: dict[str, str] = {}

    class Worker:
        def __init__(self, *_: object) -> None:
            seen.update(os.environ)

    monkeypatch.setenv(OLD_SWITCH, "True")
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(
        "rlrun.controller.local_workers.importlib.import_module", lambda name: type("M", (), {"RolloutWorker": Worker})
    )
    make_worker("rollout", 0, RunConfig(), switch_environment(Version("0.5.12"), is_check_kept=False))
    monkeypatch.setenv(SWITCH, "0")  # so that monkeypatch takes it away afterwards
    assert OLD_SWITCH not in seen and seen[SWITCH] == "0"
