"""Dumps of PyTorch's flight recorder: two that torch wrote, and others of the same structure for what takes GPUs."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import pytest

from rlrun.system.status import WorkerStatus
from rlrun.watchdog import evidence, node_state, stacks
from rlrun.watchdog.diagnosis import Stall, diagnose
from rlrun.watchdog.evidence import Evidence
from rlrun.watchdog.wait_graph import Board, leaves
from tests.architecture.source import ROOT

# rank 0 waits in the third collective, a second all_gather that rank 1 has not entered
BY_TORCH = ROOT / "tests" / "data" / "cases" / "flight_recorder"


def entry(number: int, name: str = "_all_gather_base", size: int = 4096, state: str = "completed", **changes) -> dict:
    """One collective as torch 2.13 records it for NCCL."""
    times = {"completed": (7, 8), "started": (7, None), "scheduled": (None, None)}[state]
    return {
        "frames": [{"name": f"frame_{i}", "filename": "rlrun/actor/updates.py", "line": i} for i in range(9)],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "139872323390336",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [[size]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4 * size]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": times[0],
        "time_discovered_completed_ns": times[1],
        "retired": state == "completed",
        "timeout_ms": 300_000,
        "is_p2p": False,
    } | changes


def dump(*entries: dict, world_size: int = 4, **groups: list[int]) -> bytes:
    """One rank's dump. groups: further process groups by name, with their members."""
    ranks = {"0": list(range(world_size))} | groups
    whole = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "", "ranks": str(members)} for name, members in ranks.items()},
        "comm_lib_version": "2.27.5",
        "pg_status": {
            "0": {"last_enqueued_collective": 2, "last_started_collective": 2, "last_completed_collective": 1}
        },
        "entries": list(entries),
    }
    return pickle.dumps(whole, protocol=2)


def said(*dumps: bytes | None, worker: str = "actor-{rank}") -> list[str]:
    """The sentences about the dumps of ranks 0, 1, …; None: a rank has written none."""
    files = {
        f"train/flight_recorder/{worker.format(rank=rank)}_{rank}.json": stacks.dump_to_json(content)
        for rank, content in enumerate(dumps)
        if content is not None
    }
    return stacks.describe_collectives(files)


WAITS = dump(entry(1411), entry(1412, state="started"))
ABSENT = dump(entry(1411))


def test_a_rank_that_never_entered_a_collective_is_named() -> None:
    assert said(WAITS, WAITS, WAITS, ABSENT) == [
        "actor: rank 3 never entered all_gather_base #1412; the others wait in it"
    ]
    assert said(WAITS, ABSENT, WAITS, dump()) == [
        "actor: ranks 1, 3 never entered all_gather_base #1412; the others wait in it"
    ]


def test_a_rank_that_others_outran_is_named_by_the_first_collective_that_it_missed() -> None:
    ahead = dump(entry(1411), *(entry(number, state="scheduled") for number in range(1412, 1500)))
    assert said(ahead, ahead, ahead, ABSENT) == said(WAITS, WAITS, WAITS, ABSENT)


def test_a_rank_whose_record_of_a_collective_was_overwritten_is_not_accused() -> None:
    later = dump(*(entry(number, state="scheduled") for number in (1500, 1501)))
    assert said(WAITS, WAITS, WAITS, later) == said(WAITS, WAITS, WAITS, WAITS)


def test_a_rank_with_another_order_of_collectives_is_named() -> None:
    other = dump(entry(1411), entry(1412, "_reduce_scatter_base", state="started"))
    assert said(WAITS, other, WAITS, WAITS) == [
        "actor: collective #1412 is reduce_scatter_base for rank 1 and all_gather_base for the others; "
        "they wait for each other"
    ]


def test_a_rank_with_another_size_is_named_where_sizes_must_be_equal() -> None:
    smaller = dump(entry(1411), entry(1412, size=4095, state="started"))
    assert said(WAITS, WAITS, smaller, WAITS) == [
        "actor: rank 2 entered all_gather_base #1412 with 4095 numbers, the others with 4096"
    ]
    even, uneven = (dump(entry(7, "all_to_all", size=size, state="started"), world_size=2) for size in (4, 5))
    assert said(even, uneven) == ["actor: every rank entered all_to_all #7, which does not end"]


def test_a_collective_that_all_entered_is_no_ranks_fault_and_complete_ones_are_none() -> None:
    assert said(WAITS, WAITS, WAITS, WAITS) == ["actor: every rank entered all_gather_base #1412, which does not end"]
    assert said(ABSENT, ABSENT, ABSENT, ABSENT) == ["actor: no rank waits in a collective"]
    assert said() == []


def test_a_rank_without_a_dump_is_not_accused() -> None:
    assert said(WAITS, None, WAITS, WAITS) == [
        "actor: there is no dump of rank 1; waiting in all_gather_base #1412: ranks 0, 2, 3"
    ]


def test_what_nccl_aborted_counts_as_open_although_it_is_retired() -> None:
    aborted = dump(entry(1411), entry(1412, state="started", retired=True))
    assert said(aborted, aborted, aborted, ABSENT) == said(WAITS, WAITS, WAITS, ABSENT)


def test_only_members_of_a_group_are_missed_in_it_and_transfers_between_two_ranks_are_left_out() -> None:
    pair = {"process_group": ("5", "mesh_shard"), "state": "started"}
    own = dump(entry(1411), entry(3, **pair), **{"5": [0, 1]})
    assert said(own, dump(entry(1411), **{"5": [0, 1]}), ABSENT, ABSENT) == [
        "actor: rank 1 never entered all_gather_base #3; the others wait in it"
    ]
    unknown = dump(entry(1411), entry(3, process_group=("", "undefined"), state="started"), **{"": []})
    assert said(unknown, ABSENT, ABSENT, ABSENT) == ["actor: every rank entered all_gather_base #3, which does not end"]
    assert said(dump(entry(9, "send 0->1", state="started", is_p2p=True), world_size=1)) == [
        "actor: no rank waits in a collective"
    ]


def test_each_rollout_worker_has_ranks_of_its_own() -> None:
    assert said(WAITS, WAITS, WAITS, ABSENT, worker="rollout-7") == [
        "rollout/7: rank 3 never entered all_gather_base #1412; the others wait in it"
    ]


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.system, ("exit 3",)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(WAITS[:-40], id="cut off"),
        pytest.param(b"actor-1_1", id="no pickle"),
        pytest.param(pickle.dumps([1, 2]), id="no dump"),
        pytest.param(
            pickle.dumps({"version": "9", "pg_config": {}, "entries": [{"state": 1}]}), id="of another format"
        ),
        pytest.param(pickle.dumps({"entries": [], "pg_config": Command()}), id="with code"),
    ],
)
def test_what_is_no_dump_is_kept_as_it_is_and_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError):
        stacks.dump_to_json(content)
    (tmp_path / "flight_recorder").mkdir()
    (tmp_path / "flight_recorder" / "actor-1_1").write_bytes(content + b" ")
    files = {f"train/{name}": text for name, text in node_state.files(str(tmp_path), {"actor/1": 0}).items()}
    assert bytes.fromhex(files["train/flight_recorder/actor-1_1.hex"]) == content + b" "
    assert stacks.describe_collectives(files) == ["actor/1: the dump of its flight recorder cannot be read"]


def test_dumps_of_torch_are_read_from_the_run_folder_to_the_alarm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "flight_recorder").mkdir()
    for path in BY_TORCH.iterdir():
        (tmp_path / "flight_recorder" / path.name).write_bytes(path.read_bytes())

    def ask(where: str, run_dir: str, processes: dict[str, int], *_: object) -> dict:
        files = node_state.files(run_dir, processes)
        states = dict.fromkeys(processes, "S")
        return {"states": states, "full_disks": [], "memory": "", "oom_kills": [], "stacks": {}, "files": files}

    monkeypatch.setattr(evidence, "request_evidence", ask)
    board = Board()
    nobody = 2**22 + 1  # above any pid: both have ended
    board.put(
        [
            WorkerStatus(
                f"actor/{rank}", f"train-{rank}", nobody, "update", 99.0, silence_s=99.0, sentinel=f"{rank}:1/t"
            )
            for rank in range(2)
        ]
    )
    processes, pending = board.processes(), ["actor/0", "actor/1"]
    found = Evidence(tmp_path, board)
    collected = found.collect(Stall("update of step 3", pending, leaves(pending, processes), processes))
    sentence = "actor: rank 1 never entered all_gather #3; the others wait in it"
    assert collected.summary("actor/1")[0] == sentence
    archive, _ = found.pack(collected, diagnose(collected.stall))
    with tarfile.open(archive) as opened:
        alarm = opened.extractfile("alarm.txt")
        assert alarm is not None and sentence in alarm.read().decode().splitlines()


def test_a_dump_from_before_the_process_began_is_none_of_its(tmp_path: Path) -> None:
    (tmp_path / "flight_recorder").mkdir()
    path = tmp_path / "flight_recorder" / "actor-0_0"
    path.write_bytes(WAITS)
    name = "flight_recorder/actor-0_0.json"
    assert name in node_state.files(str(tmp_path), {"actor/0": os.getpid()})
    os.utime(path, (1e9, 1e9))
    assert name not in node_state.files(str(tmp_path), {"actor/0": os.getpid()})
