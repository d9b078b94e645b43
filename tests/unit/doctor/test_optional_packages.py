"""Optional packages are asked for by what the configuration uses, and opened in the interpreter that will use them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rlrun
from rlrun.config.schema import AttentionKernel, OptimizerKind, RolloutBackendKind, RunConfig
from rlrun.doctor.optional_packages import PackageRequest, driver_packages, needed_packages, open_packages
from rlrun.system.errors import ExitStatus, RunError

ALL = {"actor": 1, "rollout": 1, "env": 1}


def names(config: RunConfig, workers: dict[str, int]) -> list[str]:
    return [request.package for request in needed_packages(config, workers, {})]


def test_nothing_is_opened_that_nothing_needs() -> None:
    assert names(RunConfig(), ALL) == []
    assert [request.package for request in driver_packages(RunConfig())] == ["tensorboard"]


def test_each_role_needs_its_own() -> None:
    config = RunConfig()
    config.actor.optimizer = OptimizerKind.adamw_8bit
    config.policy.attention, config.rollout.backend = AttentionKernel.flash, RolloutBackendKind.sglang
    assert names(config, {"actor": 2}) == ["bitsandbytes", "flash-attn"]
    assert names(config, {"rollout": 2}) == ["sglang"]
    assert names(config, {"env": 2}) == []
    config.rollout.backend = RolloutBackendKind.hf
    assert names(config, {"rollout": 2}) == ["flash-attn"]


def test_they_are_opened_in_their_interpreter(tmp_path: Path) -> None:
    (tmp_path / "broken.sh").write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    (tmp_path / "broken.sh").chmod(0o755)
    statements = {"json": "import json", "absent": "import rlrun_absent"}
    requests = [PackageRequest(name, "a.key", line, sys.executable, "") for name, line in statements.items()]
    requests += [
        PackageRequest(name, "a.key", "import json", str(tmp_path / name), "") for name in ("none", "broken.sh")
    ]
    opened = open_packages(requests, limit_s=120)
    errors = {facts.request.package: facts.error for facts in opened}
    assert [facts.request.package for facts in opened if not facts.is_started] == ["none"]
    assert errors["json"] == "" and "No module named 'rlrun_absent'" in errors["absent"]
    assert "does not start: No such file" in errors["none"] and errors["broken.sh"] == "no such library"


def test_a_busy_machine_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.doctor.optional_packages.local_load_factor", lambda: 1e4)
    slow = PackageRequest("slow", "a.key", "import time; time.sleep(1)", sys.executable, "")
    (facts,) = open_packages([slow], 0.1)
    assert not facts.is_late and facts.error == ""


def test_a_slow_import_is_reported_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.doctor.optional_packages.local_load_factor", lambda: 1.0)
    (facts,) = open_packages([PackageRequest("slow", "a.key", "import time; time.sleep(60)", sys.executable, "")], 0.5)
    assert facts.is_late and facts.error == ""


def test_a_run_without_sglang_is_refused_before_anything_starts(tmp_path: Path) -> None:
    overrides = ["run=single_process", "rollout=sglang", f"output_dir={tmp_path}", "rollout.sglang.python=/bin/false"]
    with pytest.raises(RunError, match="optional packages") as caught:
        rlrun.run(rlrun.load_config(overrides))
    assert caught.value.exit_status is ExitStatus.doctor and "sglang, which rollout.sglang" in str(caught.value.cause)
    assert not (tmp_path / "checkpoints").exists() and "demos" not in (tmp_path / "logs/driver-0.log").read_text()
