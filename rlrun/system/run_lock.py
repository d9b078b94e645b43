"""One run per run folder: a lock that tells who holds it, and that the next run takes over from a dead one.

The kernel drops a file lock with the process that held it. Where hosts do not see each other's file locks, the holder
also renews the lock's time stamp, which the others compare with the clock of the same file system.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rlrun.system.errors import RunError

LOCK = "run.lock"
RENEW_S = 5.0
STALE_S = 60.0  # without a renewal: the holder is dead
REQUEUE_S = 90.0  # for the earlier process of the same scheduler's job to end, or to become stale
_POLL_S = 1.0
_SETTLE_S = 1.0  # where file locks are not to be had, two that start together see who wrote last
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}  # file systems without file locks


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    host: str
    pid: int
    process_started: int  # clock ticks after the start of the machine; tells processes of one number apart
    machine: str  # its present life (boot) and the space in which `pid` counts (containers have their own)
    started_at: str  # for people
    job: str | None  # of the scheduler

    @classmethod
    def this_process(cls) -> Holder:
        """What this process writes into its lock."""
        return cls(
            socket.gethostname(),
            os.getpid(),
            _start_of(os.getpid()) or 0,
            _machine(),
            time.strftime("%Y-%m-%d %H:%M:%S %z"),
            os.environ.get("SLURM_JOB_ID"),
        )

    @property
    def name(self) -> str:
        """Example: process 4711 on node-3, since 2026-01-31 09:00:00 +0100."""
        return f"process {self.pid} on {self.host}, since {self.started_at}"

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process that this one can look up."""
        return self.machine == _machine()

    @property
    def is_running_here(self) -> bool:
        """Whether that very process still lives."""
        return self.is_here and _start_of(self.pid) == self.process_started


@dataclass(frozen=True)
class _Found:
    """Who stands in the way. stamp_ns: when that was last renewed. is_certain: it lives; False: it may be dead."""

    holder: Holder
    stamp_ns: int
    is_certain: bool


class RunLock:
    """The lock of one run folder, from `acquire` to `release`.

    Example::

        lock = RunLock(run_dir)
        lock.acquire(print)      # RunError: another run writes to this folder
        ...
        lock.release()
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._path = folder / LOCK
        self._own = Holder.this_process()
        self._file: int | None = None
        self._successor: Holder | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="run lock", daemon=True)

    def acquire(self, note: Callable[[str], None]) -> None:
        """Take it, or raise RunError naming who has it: at once, or within `RENEW_S` if that is on another host.

        An earlier process of the same scheduler's job may end first, and one that may be dead shows a sign of life.
        note: told of a lock that is waited for, or was taken over.
        """
        deadline, first = time.monotonic() + REQUEUE_S, None
        while (found := self._try(note)) is not None:
            is_alive = found.is_certain or (first is not None and found.stamp_ns != first.stamp_ns)
            is_awaited = found.holder.job is not None and found.holder.job == self._own.job
            if (is_alive and not is_awaited) or found.holder == self._own or time.monotonic() > deadline:
                raise self._refused(found.holder)
            if first is None and found.holder is not _UNKNOWN:
                why = f"to end, as it is of the same job {self._own.job}" if is_awaited else "to show that it lives"
                note(f"waiting for {found.holder.name}, {why}: it holds {self._path}")
            first = first or found
            time.sleep(_POLL_S)
        self._thread.start()

    def require(self) -> None:
        """Raise RunError where another run took the folder over, as while this machine slept."""
        if self._successor is not None:
            raise self._refused(self._successor)

    def release(self) -> None:
        """Let the next run in. Twice is fine."""
        if self._file is None:
            return
        self._is_over.set()
        self._thread.join(timeout=_POLL_S)
        with suppress(OSError):
            if self._read() == self._own:
                self._path.unlink()
        os.close(self._file)
        self._file = None

    def _try(self, note: Callable[[str], None]) -> _Found | None:
        """Take it; returns who stands in the way, None: nobody does."""
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            found = self._taken(file, note)
        except BaseException:
            os.close(file)
            raise
        if found is None:
            self._file = file
        else:
            os.close(file)
        return found

    def _taken(self, file: int, note: Callable[[str], None]) -> _Found | None:
        stamp_ns = os.fstat(file).st_mtime_ns
        try:
            has_file_locks = _lock(file)
        except BlockingIOError:
            holder = self._read()  # None: it is being written, or taken away
            return _Found(holder or _UNKNOWN, stamp_ns, is_certain=holder is not None)
        former = self._read()
        if not _is_named(file, self._path):  # who held it has just left, and took the name away
            return _Found(former or _UNKNOWN, stamp_ns, is_certain=False)
        if former is not None and self._may_live(former, has_file_locks):
            return _Found(former, stamp_ns, is_certain=former.is_here)
        os.ftruncate(file, 0)
        os.pwrite(file, (json.dumps(asdict(self._own), indent=1) + "\n").encode(), 0)
        os.fsync(file)
        if not has_file_locks or (former is not None and not former.is_here):
            time.sleep(_SETTLE_S)
            if (winner := self._read()) not in (self._own, None):
                return _Found(winner, stamp_ns, is_certain=True)
        if former is not None:
            note(f"took over {self._path} of {former.name}: it has ended without releasing it")
        return None

    def _may_live(self, holder: Holder, has_file_locks: bool) -> bool:
        """Whether who wrote the lock may live, although no file lock stands in the way."""
        if holder.is_here:  # of one kernel: its file lock would
            return not has_file_locks and holder.is_running_here
        return self._age_s() < STALE_S

    def _age_s(self) -> float:
        """Since the last renewal, by the clock of the file system."""
        probe = self.folder / f".{LOCK}.{self._own.host}.{self._own.pid}"
        try:
            probe.write_text("")
            return probe.stat().st_mtime - self._path.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _read(self) -> Holder | None:
        """Who wrote the lock; None: nobody, or it is damaged."""
        try:
            return Holder(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _renew(self) -> None:
        while not self._is_over.wait(RENEW_S):
            with suppress(OSError):  # a disk that fails is told by who writes results to it
                os.utime(self._path)
                found = self._read()
                self._successor = found if found not in (self._own, None) else self._successor

    def _refused(self, holder: Holder) -> RunError:
        return RunError(
            "Another run writes to this run folder.",
            key="output_dir",
            value=str(self.folder),
            cause=f"It is {holder.name}.",
            remedy=f"Take another output_dir, or end that run (`kill {holder.pid}` on {holder.host}).",
        )


_UNKNOWN = Holder("an unknown host", 0, 0, "", "an unknown time", None)


def _is_named(file: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _lock(file: int) -> bool:
    """Take the file lock; False where the file system has none. Raises BlockingIOError where another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _machine() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks after the start of the machine; None: it does not live."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if told[0] in "ZX" else int(told[19])
    except (OSError, IndexError):
        return None
