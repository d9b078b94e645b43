"""Lock of a run folder, which names its holder; the next run takes it over from a dead holder.

The kernel releases a file lock when its process ends. For hosts that do not see each other's file locks, the holder
also renews the time stamp of the lock file, which others compare with the clock of the same file system.
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
STALE_S = 60.0  # without a renewal for this time, the holder is dead
REQUEUE_S = 90.0  # time for the earlier process of the same job to end, or to become stale
_POLL_S = 1.0
_SETTLE_S = 1.0  # without file locks, two runs that start together read after this time which one wrote last
_NO_LOCK_ERRORS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}  # the file system has no file locks


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    host: str
    pid: int
    process_started: int  # clock ticks since boot; distinguishes processes with the same pid
    machine: str  # boot id and pid namespace (containers have their own)
    started_at: str  # for people
    job: str | None  # job id of the scheduler

    @classmethod
    def this_process(cls) -> Holder:
        """Describe this process."""
        return cls(
            socket.gethostname(),
            os.getpid(),
            _process_start(os.getpid()) or 0,
            _machine_id(),
            time.strftime("%Y-%m-%d %H:%M:%S %z"),
            os.environ.get("SLURM_JOB_ID"),
        )

    @property
    def name(self) -> str:
        """Example: process 4711 on node-3, since 2026-01-31 09:00:00 +0100."""
        return f"process {self.pid} on {self.host}, since {self.started_at}"

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, in this pid namespace."""
        return self.machine == _machine_id()

    @property
    def is_running_here(self) -> bool:
        """Whether the process still runs in this pid namespace."""
        return self.is_here and _process_start(self.pid) == self.process_started


_UNKNOWN_HOLDER = Holder("an unknown host", 0, 0, "", "an unknown time", None)


@dataclass(frozen=True)
class _OtherHolder:
    """Another holder. stamp_ns: time of its last renewal. is_certain: it is alive; False: it may be dead."""

    holder: Holder
    stamp_ns: int
    is_certain: bool


class RunLock:
    """The lock of one run folder, held from `acquire` to `release`.

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
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="run lock", daemon=True)

    def acquire(self, note: Callable[[str], None]) -> None:
        """Acquire the lock. Raises RunError naming its holder: at once, or within `RENEW_S` for another host.

        Waits for an earlier process of the same job to end, and for a renewal by a holder that may be dead.
        note: receives a sentence about a lock that this run waits for or takes over.
        """
        deadline = time.monotonic() + REQUEUE_S
        first = None
        while (other := self._try_acquire(note)) is not None:
            is_alive = other.is_certain or (first is not None and other.stamp_ns != first.stamp_ns)
            is_awaited = other.holder.job is not None and other.holder.job == self._own.job
            if (is_alive and not is_awaited) or other.holder == self._own or time.monotonic() > deadline:
                raise self._held_error(other.holder)
            if first is None and other.holder is not _UNKNOWN_HOLDER:
                why = f"to end, as it is of the same job {self._own.job}" if is_awaited else "to show that it lives"
                note(f"waiting for {other.holder.name}, {why}: it holds {self._path}")
            first = first or other
            time.sleep(_POLL_S)
        self._thread.start()

    def require(self) -> None:
        """Raise RunError if another run has taken over the folder, for example while this machine was suspended."""
        if self._successor is not None:
            raise self._held_error(self._successor)

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._file is None:
            return
        self._released.set()
        self._thread.join(timeout=_POLL_S)
        with suppress(OSError):
            if self._read() == self._own:
                self._path.unlink()
        os.close(self._file)
        self._file = None

    def _try_acquire(self, note: Callable[[str], None]) -> _OtherHolder | None:
        """Try to acquire the lock. Returns the other holder; None if the lock is acquired."""
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            other = self._acquire_file(file, note)
        except BaseException:
            os.close(file)
            raise
        if other is None:
            self._file = file
        else:
            os.close(file)
        return other

    def _acquire_file(self, file: int, note: Callable[[str], None]) -> _OtherHolder | None:
        stamp_ns = os.fstat(file).st_mtime_ns
        try:
            has_file_locks = _flock(file)
        except BlockingIOError:
            holder = self._read()  # None: the file is being written or removed
            return _OtherHolder(holder or _UNKNOWN_HOLDER, stamp_ns, is_certain=holder is not None)
        former = self._read()
        if not _is_same_file(file, self._path):  # the former holder has just removed the file
            return _OtherHolder(former or _UNKNOWN_HOLDER, stamp_ns, is_certain=False)
        if former is not None and self._may_be_alive(former, has_file_locks):
            return _OtherHolder(former, stamp_ns, is_certain=former.is_here)
        os.ftruncate(file, 0)
        os.pwrite(file, (json.dumps(asdict(self._own), indent=1) + "\n").encode(), 0)
        os.fsync(file)
        if not has_file_locks or (former is not None and not former.is_here):
            time.sleep(_SETTLE_S)
            if (winner := self._read()) not in (self._own, None):
                return _OtherHolder(winner, stamp_ns, is_certain=True)
        if former is not None:
            note(f"took over {self._path} of {former.name}: it has ended without releasing it")
        return None

    def _may_be_alive(self, holder: Holder, has_file_locks: bool) -> bool:
        """Return whether the holder may be alive although this process got the file lock."""
        if holder.is_here:  # on the same kernel it would still hold the file lock
            return not has_file_locks and holder.is_running_here
        return self._age_s() < STALE_S

    def _age_s(self) -> float:
        """Return the seconds since the last renewal, by the file system's clock."""
        probe = self.folder / f".{LOCK}.{self._own.host}.{self._own.pid}"
        try:
            probe.write_text("")
            return probe.stat().st_mtime - self._path.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _read(self) -> Holder | None:
        """Return the holder that the lock file names; None if the file is missing, empty or corrupted."""
        try:
            return Holder(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            with suppress(OSError):  # the writers of results report a disk that fails
                os.utime(self._path)
                holder = self._read()
                self._successor = holder if holder not in (self._own, None) else self._successor

    def _held_error(self, holder: Holder) -> RunError:
        return RunError(
            "Another run writes to this run folder.",
            key="output_dir",
            value=str(self.folder),
            cause=f"It is {holder.name}.",
            remedy=f"Take another output_dir, or end that run (`kill {holder.pid}` on {holder.host}).",
        )


def _is_same_file(file: int, path: Path) -> bool:
    """Return whether the open file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _flock(file: int) -> bool:
    """Take the file lock. Returns False if the file system has none. Raises BlockingIOError if it is taken."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in _NO_LOCK_ERRORS:
            return False
        raise
    return True


def _machine_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError):
        return None
