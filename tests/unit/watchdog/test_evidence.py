"""Questions about the processes of a node that does not answer: they must not block the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.data.messages import WorkerStatus
from rlrun.watchdog import evidence
from rlrun.watchdog.board import Board
from rlrun.watchdog.evidence import Evidence


def test_a_sentinel_that_does_not_answer_is_asked_once_for_all_workers_of_its_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def ask(where: str, *_: object) -> dict:
        asked.append(where)
        if where.startswith("10.77.0.2"):
            raise TimeoutError("timed out")
        return {"states": {"env/64": "S"}}

    monkeypatch.setattr(evidence, "ask", ask)
    board = Board()
    lost = [WorkerStatus(f"env/{rank}", "sim", rank, "simulate", 1.0, sentinel="10.77.0.2:1/t") for rank in range(64)]
    board.put([*lost, WorkerStatus("env/64", "sim-1", 7, "simulate", 1.0, sentinel="10.77.0.3:1/t")])
    found = Evidence(tmp_path, board)
    states = {worker: found.state(process) for worker, process in board.processes().items()}
    assert states.pop("env/64") == "S"
    assert set(states.values()) == {"?"}
    assert asked.count("10.77.0.2:1/t") == 1
