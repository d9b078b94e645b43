"""Evidence about a stall, collected from the sentinels of all nodes and from the board; one archive per alarm."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import socket
import tarfile
import tempfile
import time
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

from rlrun.observability.run_files import ALARMS
from rlrun.system.errors import RunError
from rlrun.system.telemetry import mark_alive
from rlrun.watchdog import node_state, stacks
from rlrun.watchdog.diagnosis import Diagnosis, NodeFacts, ProcessFacts, Stall, format_workers
from rlrun.watchdog.probes import run_with_timeout
from rlrun.watchdog.sentinel import quick_evidence, request_evidence
from rlrun.watchdog.wait_graph import Board, Process

logger = logging.getLogger(__name__)

_STATE_S = 2.0
_RETRY_S = 10.0  # interval between two requests to a sentinel that does not answer
_COLLECT_S = 60.0  # for all nodes, which are asked at the same time
_STORE_S = 10.0  # for writing an archive
_SHOWN_FRAMES = 6  # frames of the culprit in the error message


@dataclass(frozen=True)
class Collected:
    """A stall with the facts from the nodes, and the files for the archive."""

    stall: Stall
    files: Mapping[str, str]  # name in the archive -> text
    frames: Mapping[str, list[str]]  # worker -> frames of its working thread, innermost first
    missing: Mapping[str, str]  # host -> why it returned no evidence
    collectives: list[str]  # sentences on the collectives in which ranks wait; [] without dumps

    def summary(self, culprit: str) -> list[str]:
        """Return lines for the error message: collectives, the rarest stacks, the culprit's stack, silent hosts."""
        lines = list(self.collectives)
        groups: dict[tuple[str, ...], list[str]] = {}
        for worker, frames in sorted(self.frames.items()):
            if frames and worker != "driver/0":
                groups.setdefault(tuple(frames), []).append(worker)
        for stack, members in sorted(groups.items(), key=lambda group: len(group[1]))[:4]:
            lines.append(f"in {stack[0]}: {format_workers(members)}")
        shown = self.frames.get(culprit, [])[:_SHOWN_FRAMES]
        if shown:
            lines.append(f"{culprit}: " + " < ".join(shown))
        lines += [f"{host}: {why}" for host, why in self.missing.items()]
        return lines


class Evidence:
    """Collector of evidence about one run. The statuses on the board hold the addresses of the sentinels."""

    def __init__(self, run_dir: Path, board: Board):
        self._run_dir = run_dir
        self._board = board
        self._retry_at: dict[str, float] = {}  # monotonic time, by sentinel

    def state(self, process: Process) -> str:
        """Return the state of a process: R, S, D, T, Z, "gone", or "?" if its node cannot be asked."""
        return self._quick_facts(process)["states"].get(process.worker, "?")

    def queue_seconds(self, process: Process) -> dict[str, float]:
        """Return the time that each thread of a worker has waited for a core; {} if its node cannot be asked."""
        return self._quick_facts(process)["queue_seconds"].get(process.worker, {})

    def _quick_facts(self, process: Process) -> dict:
        """Return state and times of a process, like `sentinel.node_evidence`; empty if its node cannot be asked."""
        processes = {process.worker: process.pid}
        if process.host == socket.gethostname():
            return quick_evidence(processes)
        status = self._board.statuses().get(process.worker)
        where = status.sentinel if status is not None else ""
        nothing: dict = {"states": {}, "queue_seconds": {}}
        if not where:
            return nothing
        if time.monotonic() < self._retry_at.get(where, 0.0):
            return nothing  # many workers of one lost node would otherwise block the driver for minutes
        mark_alive()
        try:
            return request_evidence(where, str(self._run_dir), processes, False, _STATE_S)
        except OSError as error:
            logger.debug("no state of %s: %s", process.worker, error)
            self._retry_at[where] = time.monotonic() + _RETRY_S
            return nothing

    def collect(self, stall: Stall) -> Collected:
        """Collect all evidence from all nodes. A node that does not answer is named, and does not delay the others."""
        nodes: dict[str, dict[str, int]] = {}  # sentinel -> worker -> pid
        hosts: dict[str, str] = {}
        for worker, status in self._board.statuses().items():
            nodes.setdefault(status.sentinel, {})[worker] = status.pid
            hosts[status.sentinel] = status.host
        here = next((where for where, host in hosts.items() if where and host == socket.gethostname()), None)
        if here is not None:
            nodes[here]["driver/0"] = os.getpid()
        missing = {}
        answers = {}
        if "" in nodes:
            unguarded = {status.host for status in self._board.statuses().values() if not status.sentinel}
            missing = dict.fromkeys(sorted(unguarded), "no sentinel: its Ray was not started by rlrun")
            del nodes[""]
        with futures.ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
            asked = {
                where: pool.submit(request_evidence, where, str(self._run_dir), processes, True, _COLLECT_S)
                for where, processes in nodes.items()
            }
            end = time.monotonic() + _COLLECT_S + 10
            while futures.wait(asked.values(), timeout=1.0).not_done and time.monotonic() < end:
                mark_alive()  # the driver itself is not blocked
            for where, future in asked.items():
                try:
                    answers[hosts[where]] = future.result(timeout=0)
                except OSError as error:
                    missing[hosts[where]] = f"its sentinel does not answer: {error}"
        return self._collected(stall, answers, missing)

    def _collected(self, stall: Stall, answers: Mapping[str, dict], missing: Mapping[str, str]) -> Collected:
        facts: dict[str, ProcessFacts] = {}
        nodes: dict[str, NodeFacts] = {}
        files: dict[str, str] = {}
        frames: dict[str, list[str]] = {}
        for host, answer in answers.items():
            nodes[host] = NodeFacts(host, tuple(answer["full_disks"]), answer["memory"], tuple(answer["oom_kills"]))
            files |= {f"{host}/{name}": text for name, text in answer["files"].items()}
            for worker, state in answer["states"].items():
                stack = answer["stacks"].get(worker, {})
                facts[worker] = ProcessFacts(
                    state, stack.get("where", ""), stack.get("holds_gil", False), stack.get("is_in_collective", False)
                )
                frames[worker] = stack.get("frames", [])
        files["board.json"] = self._statuses()
        stall = dataclasses.replace(stall, facts=facts, nodes=nodes)
        return Collected(stall, files, frames, missing, stacks.describe_collectives(files))

    def pack(self, collected: Collected, diagnosis: Diagnosis) -> tuple[Path, str]:
        """Write the archive of an alarm. Returns like `write_archive`."""
        head = "\n".join([diagnosis.sentence, *collected.collectives, f"-> {diagnosis.action}", ""])
        return write_archive(self._run_dir, {"alarm.txt": head, **collected.files})

    def pack_failure(self, failure: RunError) -> tuple[Path, str]:
        """Write an archive about a failure that ends the run, with files of this node. Returns like `write_archive`."""
        statuses = self._board.statuses().values()
        here = {status.worker: status.pid for status in statuses if status.host == socket.gethostname()}
        files = {"failure.txt": f"{failure}\n", "board.json": self._statuses()}
        return write_archive(
            self._run_dir, files | node_state.files(str(self._run_dir), here | {"driver/0": os.getpid()})
        )

    def _statuses(self) -> str:
        return json.dumps(
            {worker: dataclasses.asdict(status) for worker, status in self._board.statuses().items()}, indent=1
        )


def write_archive(run_dir: Path, files: Mapping[str, str]) -> tuple[Path, str]:
    """Write alarms/<time>.tar.gz into the run folder, or into a temporary folder if that fails or takes too long.

    Returns the path of the archive, and a remark for people; "" if the archive is in the run folder.
    """
    failed: list[str] = []
    path = run_with_timeout("the archive", lambda: _write_tar(run_dir / ALARMS, files), None, failed, _STORE_S)
    if path is not None:
        return path, ""
    remark = f"; not in {run_dir}, whose disk took nothing within {_STORE_S:.0f} s: {failed[0]}"
    folder = Path(tempfile.gettempdir()) / f"rlrun-alarm-{os.getpid()}-{time.monotonic_ns()}"
    path = run_with_timeout("the archive", lambda: _write_tar(folder, files, is_private=True), None, failed, _STORE_S)
    return path or folder, remark if path is not None else f"{remark}; nor in {folder}: {failed[-1]}"


def _write_tar(folder: Path, files: Mapping[str, str], is_private: bool = False) -> Path:
    """Write the archive. is_private: others enter the place of the folder, and may read neither it nor the archive."""
    path = folder / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}.tar.gz"
    folder.mkdir(mode=0o700 if is_private else 0o777, parents=True, exist_ok=not is_private)
    mode = 0o600 if is_private else 0o666
    with (
        open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as stream,
        tarfile.open(fileobj=stream, mode="w:gz") as archive,
    ):
        for name, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = int(time.time())
            archive.addfile(info, io.BytesIO(content))
    return path
