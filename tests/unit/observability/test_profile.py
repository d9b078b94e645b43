"""A torch profile of chosen steps only."""

import json
import pstats
from pathlib import Path

import pytest

from rlrun.config.schema import LoggingConfig
from rlrun.observability.timeline import CallProfile, profiled


def test_chosen_steps_leave_a_trace_even_when_they_fail(tmp_path: Path) -> None:
    import torch

    config = LoggingConfig(profile_steps=[3])
    with profiled(tmp_path, config, 2, "actor/0"):
        torch.ones(4) @ torch.ones(4)
    assert not (tmp_path / "profile").exists()
    with pytest.raises(RuntimeError, match="in the step"), profiled(tmp_path, config, 3, "actor/0"):
        torch.ones(8, 8) @ torch.ones(8, 8)
        raise RuntimeError("in the step")
    trace = json.loads((tmp_path / "profile" / "step-3-actor-0.json").read_text())
    assert any("aten::mm" in event.get("name", "") for event in trace["traceEvents"])
    assert "aten::mm" in (tmp_path / "profile" / "step-3-actor-0.txt").read_text()


def test_the_calls_of_a_simulator_are_added_up(tmp_path: Path) -> None:
    profile = CallProfile()
    for _ in range(3):
        with profile.running():
            json.dumps([1] * 10)
    json.loads("[1]")  # outside
    profile.write(tmp_path, 4, "env/1")
    stats = pstats.Stats(str(tmp_path / "profile" / "step-4-env-1.pstats"))
    calls = {name: count for (_, _, name), (count, *_) in stats.stats.items()}  # type: ignore[attr-defined]
    assert calls["dumps"] == 3 and "loads" not in calls
    assert "dumps" in (tmp_path / "profile" / "step-4-env-1.txt").read_text()
