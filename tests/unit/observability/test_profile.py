"""A torch profile of chosen steps only."""

import json
from pathlib import Path

import pytest

from rlrun.config.schema import LoggingConfig
from rlrun.observability.profile import profiled


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
