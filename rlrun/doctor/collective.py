"""An all-reduce of every planned pair of processes; each process is ended when time is up.

Gloo waits up to five times its timeout for a connection and cannot be interrupted, so the pairs of one member are
tried in threads of a process that ends itself: `python -m rlrun.doctor.collective` reads a `Job` as JSON on its
standard input and writes one line of JSON per finished pair. As in a run, no process is two members.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from rlrun.doctor.facts import PairFacts

IMPORT_S = 16.0  # for torch to be imported on every node, and for all to reach the store
# For CUDA to start (4 to 15 s on a node of eight GPUs without persistence mode), and for NCCL's first communicator.
NCCL_S = 30.0
_POLL_S = 0.05
_VISIT_S = 1.0  # for a last word at the store


@dataclass(frozen=True)
class Job:
    """One member's part. Example: Job("a", [("a", "b")], "gloo", "enp3s0", "10.77.0.1", 29500, True, 3.0, None)."""

    member: str
    pairs: Sequence[tuple[str, str]]  # of members; only those that this one is in
    backend: str
    interface: str
    store_address: str
    store_port: int
    is_store_here: bool
    timeout_s: float  # for an all-reduce
    accelerator: int | None  # index for NCCL

    @property
    def device_s(self) -> float:
        """For the accelerator to be opened."""
        return NCCL_S if self.backend == "nccl" else 0.0

    @property
    def limit_s(self) -> float:
        """When there is an answer, counted from its start."""
        return IMPORT_S + self.device_s + 2 * self.timeout_s + 2 * _VISIT_S

    @property
    def environment(self) -> dict[str, str]:
        """What differs from this process's: as the plan sets it for workers."""
        names = {"GLOO_SOCKET_IFNAME": self.interface, "NCCL_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        return names if self.accelerator is None else names | {"CUDA_VISIBLE_DEVICES": str(self.accelerator)}


def all_reduce(jobs: Sequence[Job]) -> tuple[PairFacts, ...]:
    """Try the pairs of this node's members, all at once, each member in a process of its own."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return tuple(facts for found in pool.map(_try, jobs) for facts in found)


def _try(job: Job) -> tuple[PairFacts, ...]:
    """The pairs of one member; those that have no result when time is up get an error that says so."""
    command = [sys.executable, "-m", "rlrun.doctor.collective"]
    environment, pipe = os.environ | job.environment, subprocess.PIPE
    child = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        output, complaint = child.communicate(json.dumps(asdict(job)), timeout=job.limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        output, complaint = child.communicate(timeout=job.limit_s)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    found = {(facts.source, facts.target): facts for facts in (PairFacts(**json.loads(line)) for line in lines)}
    last = complaint.strip().splitlines()[-1] if child.returncode and complaint.strip() else "no answer"
    return tuple(
        found.get((source, target), PairFacts(source, target, job.backend, last)) for source, target in job.pairs
    )


def main() -> None:
    """Try the pairs of the job on standard input, print results, and end, whatever still hangs."""
    job = Job(**json.load(sys.stdin))
    meeting = _Meeting(job)
    error = meeting.open()
    threads = [
        threading.Thread(target=meeting.try_pair, args=(source, target, (source, target).index(job.member), error))
        for source, target in job.pairs
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    while any(thread.is_alive() for thread in threads) and time.monotonic() < meeting.ends:
        time.sleep(_POLL_S)
    meeting.leave()
    sys.stdout.flush()
    os._exit(0)  # threads inside Gloo end no other way


class _Meeting:
    """The store at which both members of a pair check in before they connect."""

    def __init__(self, job: Job):
        import torch.distributed as dist

        self.job = job
        self._dist: Any = dist
        self._server: Any = None
        self._lock = threading.Lock()
        self._told: set[tuple[str, str]] = set()
        self._latest = time.monotonic() + IMPORT_S / 2 + job.device_s  # for peers to come
        self._num_waiting = len(job.pairs)
        self._started = time.monotonic()  # when the last pair began to connect

    @property
    def ends(self) -> float:
        """When whoever has no result gets none any more (time.monotonic)."""
        return (self._latest if self._num_waiting else self._started) + 2 * self.job.timeout_s

    def open(self) -> str | None:
        """Reach the store, open the device, check in; returns why not."""
        try:
            if self.job.is_store_here:
                self._server = self._store(is_server=True)
            store = self._store()
        except (RuntimeError, OSError) as fault:
            return f"store at {self.job.store_address}:{self.job.store_port}: {_plain(fault)}"
        try:
            self._one()  # the first opens CUDA, for whose slowness no link is to blame
        except (RuntimeError, AssertionError) as fault:
            return f"accelerator {self.job.accelerator}: {_plain(fault)}"
        store.set(f"here/{self.job.member}", "yes")
        return None

    def _one(self) -> Any:
        """What is added up."""
        import torch

        return torch.ones(1, device="cuda" if self.job.backend == "nccl" else "cpu")

    def _store(self, is_server: bool = False) -> Any:
        """A connection of its own: a store client serves one thread at a time."""
        address, port = self.job.store_address, self.job.store_port
        return self._dist.TCPStore(
            address,
            port,
            is_master=is_server,
            wait_for_workers=False,
            timeout=timedelta(seconds=IMPORT_S / 2),
            master_listen_fd=socket.create_server((address, port)).detach() if is_server else None,
        )

    def try_pair(self, source: str, target: str, rank: int, error: str | None) -> None:
        """One side of one pair; prints the result."""
        took = 0.0
        if error is None:
            try:
                store = self._store()
                error = self._wait_for((target, source)[rank], store)
                started = time.perf_counter()
                error = error or self._reduce(self._dist.PrefixStore(f"{source}-{target}", store), rank)
                took = 1000 * (time.perf_counter() - started)
            except (RuntimeError, ValueError) as fault:  # ValueError: what ProcessGroupNCCL says of a missing device
                error = _plain(fault)
        with self._lock:
            if (source, target) not in self._told or error is not None:
                self._told.add((source, target))
                print(json.dumps(asdict(PairFacts(source, target, self.job.backend, error, took))), flush=True)

    def _wait_for(self, peer: str, store: Any) -> str | None:
        """Until the peer has checked in; returns that it did not."""
        try:
            while not store.check([f"here/{peer}"]):
                if time.monotonic() > self._latest:
                    return f"{peer} did not come to the store at {self.job.store_address}:{self.job.store_port}"
                time.sleep(_POLL_S)
            return None
        finally:
            with self._lock:
                self._num_waiting -= 1
                self._started = time.monotonic()

    def _reduce(self, store: Any, rank: int) -> str | None:
        timeout, number = timedelta(seconds=self.job.timeout_s), self._one()
        kind = self._dist.ProcessGroupNCCL if self.job.backend == "nccl" else self._dist.ProcessGroupGloo
        kind(store, rank, 2, timeout).allreduce([number]).wait(timeout)
        return None if number.item() == 2 else f"1 + 1 gave {number.item()}"

    def leave(self) -> None:
        """The host of the store stays until the others are done with it."""
        with contextlib.suppress(RuntimeError):
            if self._server is None:
                self._store().set(f"gone/{self.job.member}", "yes")
                return
            peers = {member for pair in self.job.pairs for member in pair} - {self.job.member}
            end = time.monotonic() + _VISIT_S
            while time.monotonic() < end and not all(self._server.check([f"gone/{peer}"]) for peer in peers):
                time.sleep(_POLL_S)


def _plain(fault: Exception) -> str:
    text = str(fault).strip()
    for known, plain in (("Connection refused", "refused"), ("imed out", "no answer"), ("imeout", "no answer")):
        if known in text:
            return plain
    return text.splitlines()[0] if text else type(fault).__name__


if __name__ == "__main__":
    main()
