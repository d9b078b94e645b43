"""The evidence of an alarm: questions to nodes that do not answer, and the files of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.system.status import WorkerStatus
from rlrun.watchdog import evidence, node_state
from rlrun.watchdog.evidence import Evidence
from rlrun.watchdog.wait_graph import Board


def test_a_sentinel_that_does_not_answer_is_asked_once_for_all_workers_of_its_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def ask(where: str, *_: object) -> dict:
        asked.append(where)
        if where.startswith("10.77.0.2"):
            raise TimeoutError("timed out")
        return {"states": {"env/64": "S"}}

    monkeypatch.setattr(evidence, "request_evidence", ask)
    board = Board()
    lost = [WorkerStatus(f"env/{rank}", "sim", rank, "simulate", 1.0, sentinel="10.77.0.2:1/t") for rank in range(64)]
    board.put([*lost, WorkerStatus("env/64", "sim-1", 7, "simulate", 1.0, sentinel="10.77.0.3:1/t")])
    found = Evidence(tmp_path, board)
    states = {worker: found.state(process) for worker, process in board.processes().items()}
    assert states.pop("env/64") == "S"
    assert set(states.values()) == {"?"}
    assert asked.count("10.77.0.2:1/t") == 1


def test_the_dumps_of_the_flight_recorder_of_a_nodes_workers_are_in_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "flight_recorder"
    folder.mkdir()
    for name in ("actor-0_0", "actor-1_1", "rollout-0_1"):
        (folder / name).write_bytes(name.encode())
    files = node_state.files(str(tmp_path), {"actor/1": 0, "env/0": 0})
    dumps = {name: bytes.fromhex(text) for name, text in files.items() if name.startswith("flight_recorder/")}
    assert dumps == {"flight_recorder/actor-1_1.hex": b"actor-1_1"}
