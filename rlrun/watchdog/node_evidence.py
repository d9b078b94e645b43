"""Evidence from one node about a run: process states, stacks, what is short, and files for the archive of an alarm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlrun.watchdog import node_state
from rlrun.watchdog.stacks import Stack, dump_worker, grouped
from rlrun.watchdog.timeout import run_with_timeout

_PART_S = 15.0  # for one kind of evidence: a dead file system must not delay the others


def node_evidence(request: dict, folders: Sequence[str]) -> dict:
    """Return the states of processes; if `is_full`, also their stacks, what is short on the node, and files.

    Example request: {"run_dir": "/runs/a", "processes": {"env/1": 19016}, "is_full": true}.
    folders: further folders whose disks are checked. Evidence that takes too long is left out and named in a file.
    """
    pids: dict[str, int] = request["processes"]
    states = {worker: node_state.state(pid) for worker, pid in pids.items()}
    if not request["is_full"]:
        return {"states": states}
    run_dir = request["run_dir"]
    watched = [*folders, *node_state.ray_folders(pids.values()).values(), run_dir, "/tmp", "/dev/shm"]
    failed: list[str] = []
    stacks = run_with_timeout("stacks", lambda: _stacks(pids, run_dir), ({}, {}), failed, _PART_S)
    shares = run_with_timeout("disks", lambda: node_state.disks(watched), {}, failed, _PART_S)
    files = run_with_timeout("files", lambda: node_state.files(run_dir, pids), {}, failed, _PART_S)
    files["stacks.txt"] = _stack_file(*stacks)
    if failed:
        files["unanswered.txt"] = f"not collected within {_PART_S:.0f} s: {', '.join(failed)}\n"
    return {
        "states": states,
        "full_disks": node_state.full_disks(shares),
        "memory": node_state.short_memory(),
        "oom_kills": run_with_timeout("kernel log", lambda: node_state.oom_kills(pids.values()), [], failed, _PART_S),
        "stacks": {
            worker: {
                "where": stack.where,
                "frames": [str(frame) for frame in stack.frames],
                "holds_gil": stack.holds_gil,
                "is_in_collective": stack.is_in_collective,
            }
            for worker, stack in stacks[0].items()
        },
        "files": files,
    }


def _stacks(pids: dict[str, int], run_dir: str) -> tuple[dict[str, Stack], dict[str, str]]:
    stacks, denied = {}, {}
    for worker, pid in pids.items():
        try:
            stacks[worker] = dump_worker(pid, Path(run_dir) / "logs" / f"{worker.replace('/', '-')}.log")
        except OSError as error:
            denied[worker] = str(error)
    return stacks, denied


def _stack_file(stacks: dict[str, Stack], denied: dict[str, str]) -> str:
    parts = [
        f"=== {len(members)} of {len(stacks)}: {', '.join(members)}\n{stack.text}" for members, stack in grouped(stacks)
    ]
    return "\n\n".join(parts + [f"=== no stack of {worker}: {why}" for worker, why in denied.items()]) + "\n"
