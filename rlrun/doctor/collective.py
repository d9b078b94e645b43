"""An all-reduce of every planned pair of processes, with a time limit.

Gloo waits up to five times its timeout for a connection and cannot be interrupted. Therefore a process of its own
tries the pairs of one member in threads, and ends itself: `python -m rlrun.doctor.collective` reads a `Job` as JSON
on its standard input and writes one line of JSON per finished pair. As in a run, each member is one process.
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

# errors of a trial that did not end in time
NO_ANSWER = "no answer"
NOT_THERE = "did not come to the store"
IMPORT_S = 16.0  # until every node has imported torch and reached the store
# CUDA initialization (4 to 15 s on a node of eight GPUs without persistence mode) and NCCL's first communicator.
NCCL_S = 30.0
_POLL_S = 0.05
_LEAVE_S = 1.0  # limit for signing off at the store


@dataclass(frozen=True)
class Job:
    """The pairs of one member. Example: Job("a", [("a", "b")], "gloo", "ens3", "10.77.0.1", 29500, True, 3.0, None)."""

    member: str
    pairs: Sequence[tuple[str, str]]  # pairs of members that contain this one
    backend: str
    interface: str
    store_address: str
    store_port: int
    is_store_here: bool
    timeout_s: float  # of an all-reduce on an idle host
    accelerator: int | None  # index on the node; None: CPU (Gloo)
    factor: float = 1.0  # of all time limits, on hosts with more to do than they can

    @property
    def import_s(self) -> float:
        """Time limit for importing torch and reaching the store."""
        return self.factor * IMPORT_S

    @property
    def reduce_s(self) -> float:
        """Time limit of an all-reduce."""
        return self.factor * self.timeout_s

    @property
    def device_s(self) -> float:
        """Time limit for opening the accelerator."""
        return self.factor * NCCL_S if self.backend == "nccl" else 0.0

    @property
    def limit_s(self) -> float:
        """Time limit of the whole job, counted from its start."""
        return self.import_s + self.device_s + 2 * self.reduce_s + 2 * _LEAVE_S

    @property
    def environment(self) -> dict[str, str]:
        """Variables to set in the job's process, as the plan sets them for workers."""
        names = {"GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        names |= {"NCCL_SOCKET_IFNAME": f"={self.interface}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return names if self.accelerator is None else names | {"CUDA_VISIBLE_DEVICES": str(self.accelerator)}


def all_reduce(jobs: Sequence[Job]) -> tuple[PairFacts, ...]:
    """Try the pairs of this node's members at the same time, each member in a process of its own."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return tuple(facts for pairs in pool.map(_try, jobs) for facts in pairs)


def _try(job: Job) -> tuple[PairFacts, ...]:
    """Try the pairs of one member. A pair without a result at the time limit gets the error "no answer"."""
    command = [sys.executable, "-P", "-m", "rlrun.doctor.collective"]
    environment = os.environ | job.environment
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        output, errors = child.communicate(json.dumps(asdict(job)), timeout=job.limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate(timeout=job.limit_s)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    results = {(facts.source, facts.target): facts for facts in (PairFacts(**json.loads(line)) for line in lines)}
    last = errors.strip().splitlines()[-1] if child.returncode and errors.strip() else NO_ANSWER
    return tuple(
        results.get((source, target), PairFacts(source, target, job.backend, last)) for source, target in job.pairs
    )


def main() -> None:
    """Try the pairs of the job on standard input, print the results, and exit even if threads still hang."""
    job = Job(**json.load(sys.stdin))
    rendezvous = _Rendezvous(job)
    error = rendezvous.open()
    threads = [
        threading.Thread(target=rendezvous.try_pair, args=(source, target, (source, target).index(job.member), error))
        for source, target in job.pairs
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    while any(thread.is_alive() for thread in threads) and time.monotonic() < rendezvous.deadline:
        time.sleep(_POLL_S)
    rendezvous.leave()
    sys.stdout.flush()
    os._exit(0)  # threads inside Gloo cannot be ended otherwise


class _Rendezvous:
    """The TCP store where both members of a pair check in before they connect."""

    def __init__(self, job: Job):
        import torch.distributed as dist

        self.job = job
        self._dist: Any = dist
        self._server: Any = None
        self._lock = threading.Lock()
        self._reported: set[tuple[str, str]] = set()
        self._check_in_deadline = time.monotonic() + job.import_s / 2 + job.device_s
        self._num_waiting = len(job.pairs)
        self._started = time.monotonic()  # when the last pair began to connect

    @property
    def deadline(self) -> float:
        """Time (time.monotonic) after which no pair is waited for any longer."""
        return (self._check_in_deadline if self._num_waiting else self._started) + 2 * self.job.reduce_s

    def open(self) -> str | None:
        """Open the device, connect to the store, check in. Returns an error message, or None."""
        try:
            if self.job.is_store_here:
                self._server = self._store(is_server=True)
            try:
                self._one()  # opens CUDA now, so that its slow start does not count as a slow link
            except (RuntimeError, AssertionError) as fault:
                return f"accelerator {self.job.accelerator}: {_plain(fault)}"
            self._store().set(f"here/{self.job.member}", "yes")
        except (RuntimeError, OSError) as fault:
            return f"store at {self.job.store_address}:{self.job.store_port}: {_plain(fault)}"
        return None

    def _one(self) -> Any:
        """Return the tensor to reduce: [1] on the device of the backend."""
        import torch

        return torch.ones(1, device="cuda" if self.job.backend == "nccl" else "cpu")

    def _store(self, is_server: bool = False) -> Any:
        """Open a new connection: a store client serves one thread at a time."""
        address = self.job.store_address
        port = self.job.store_port
        return self._dist.TCPStore(
            address,
            port,
            is_master=is_server,
            wait_for_workers=False,
            timeout=timedelta(seconds=self.job.import_s / 2),
            master_listen_fd=socket.create_server((address, port)).detach() if is_server else None,
        )

    def try_pair(self, source: str, target: str, rank: int, error: str | None) -> None:
        """Run one side of one pair and print the result."""
        took = 0.0
        if error is None:
            try:
                store = self._store()
                error = self._wait_for((target, source)[rank], store)
                started = time.perf_counter()
                error = error or self._reduce(self._dist.PrefixStore(f"{source}-{target}", store), rank)
                took = 1000 * (time.perf_counter() - started)
            except (RuntimeError, ValueError) as fault:  # ProcessGroupNCCL raises ValueError for a missing device
                error = _plain(fault)
        with self._lock:
            if (source, target) not in self._reported or error is not None:
                self._reported.add((source, target))
                print(json.dumps(asdict(PairFacts(source, target, self.job.backend, error, took))), flush=True)

    def _wait_for(self, peer: str, store: Any) -> str | None:
        """Wait until the peer has checked in. Returns an error message if it did not in time."""
        try:
            while not store.check([f"here/{peer}"]):
                if time.monotonic() > self._check_in_deadline:
                    return f"{peer} {NOT_THERE} at {self.job.store_address}:{self.job.store_port}"
                time.sleep(_POLL_S)
            return None
        finally:
            with self._lock:
                self._num_waiting -= 1
                self._started = time.monotonic()

    def _reduce(self, store: Any, rank: int) -> str | None:
        timeout = timedelta(seconds=self.job.reduce_s)
        number = self._one()
        kind = self._dist.ProcessGroupNCCL if self.job.backend == "nccl" else self._dist.ProcessGroupGloo
        kind(store, rank, 2, timeout).allreduce([number]).wait(timeout)
        return None if number.item() == 2 else f"1 + 1 gave {number.item()}"

    def leave(self) -> None:
        """Sign off at the store; the member that hosts it waits until its peers have signed off."""
        with contextlib.suppress(RuntimeError):
            if self._server is None:
                self._store().set(f"gone/{self.job.member}", "yes")
                return
            peers = {member for pair in self.job.pairs for member in pair} - {self.job.member}
            end = time.monotonic() + _LEAVE_S
            while time.monotonic() < end and not all(self._server.check([f"gone/{peer}"]) for peer in peers):
                time.sleep(_POLL_S)


def _plain(fault: Exception) -> str:
    text = str(fault).strip()
    for known, plain in (("Connection refused", "refused"), ("imed out", NO_ANSWER), ("imeout", NO_ANSWER)):
        if known in text:
            return plain
    return text.splitlines()[0] if text else type(fault).__name__


if __name__ == "__main__":
    main()
