"""The group of NCCL for weight sync raises errors to its caller; other groups of the process keep torch's default."""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed

WAIT = "TORCH_NCCL_BLOCKING_WAIT"


class Group:
    """In place of ProcessGroupNCCL, which CPU builds of torch lack: notes what torch would read when it is made."""

    Options = SimpleNamespace
    seen: list[str | None]

    def __init__(self, store: object, rank: int, size: int, options: SimpleNamespace):
        self.seen.append(os.environ.get(WAIT))
        if size == 0:
            raise ValueError("no ranks")
        self.deadline_s = options._timeout.total_seconds()


@pytest.fixture
def nccl_group(monkeypatch: pytest.MonkeyPatch) -> Any:
    Group.seen = []
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.delitem(sys.modules, "rlrun.edges.nccl_group", raising=False)
    yield importlib.import_module("rlrun.edges.nccl_group").nccl_group
    sys.modules.pop("rlrun.edges.nccl_group", None)


@pytest.mark.parametrize("before", [None, "0"])
@pytest.mark.parametrize("size", [2, 0])
def test_waiting_raises_in_this_group_only(
    nccl_group: Any, monkeypatch: pytest.MonkeyPatch, before: str | None, size: int
) -> None:
    monkeypatch.delenv(WAIT, raising=False)
    if before is not None:
        monkeypatch.setenv(WAIT, before)
    if size:
        assert nccl_group(None, 0, size, 7.0).deadline_s == 7.0
    else:
        with pytest.raises(ValueError, match="no ranks"):
            nccl_group(None, 0, size, 7.0)
    assert Group.seen == ["1"] and os.environ.get(WAIT) == before
