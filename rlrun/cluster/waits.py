"""The only wait on Ray: it has an owner and a limit, raises the first failure, and names late workers."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.experimental import get_local_object_locations

from rlrun.controller.workers import Future
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.storage_error import storage_failure
from rlrun.system.telemetry import Telemetry, mark_alive
from rlrun.watchdog.wait_graph import Incoming

logger = logging.getLogger(__name__)

_GRACE_S = 2.0
# parts of Ray's messages about an actor
_NODE_DIED = "node has died"
_NOT_CREATED = "in its creation task"
_LOSSES: tuple[tuple[tuple[type[RayError], ...], str], ...] = (  # the others are named by their class
    ((ObjectLostError,), "an object it held is lost"),
    ((ActorUnavailableError,), "its process ended, or it cannot be reached"),
    ((WorkerCrashedError,), "its process ended"),
    ((NodeDiedError, TaskUnschedulableError, ActorUnschedulableError), "its node left the cluster"),
    ((LocalRayletDiedError,), "Ray on this node (raylet) has ended"),
    ((OutOfMemoryError,), "Ray ended its process, since the memory of its node was nearly full"),
)
_FULL = (OutOfDiskError, ObjectStoreFullError)
SLOW_S = 20.0  # after so long, a wait that no watchdog watches says what it waits for
_AT_ONCE = 32  # one ray.wait returns a 32nd of the open answers, since a call for each of a thousand is slow
_POLL_S = 1.0  # so that signals are handled during a wait


def wait_for(
    labels: dict[ray.ObjectRef, str],
    subject: str,
    deadline_s: float,
    owner: Telemetry,
    check: Callable[[list[str]], None] | None = None,
    lifelines: dict[ray.ObjectRef, str] | None = None,
    on_failure: Callable[[RunError], None] | None = None,
) -> list[Any]:
    """Wait for references, and return their values in the same order. The first failure is raised at once.

    labels: the name of each reference, as "env/0.collect". owner: telemetry whose status shows the wait.
    check: called about once a second with the workers that have not answered; it ends the wait by raising RunError,
    as the watchdog does. Without it, a warning comes after 20 s, and after `deadline_s` seconds a RunError that names
    the late workers.
    lifelines: references that end only with their workers, which show a death even without an open request.
    on_failure: receives every failure instead, and may raise; a failure then takes the place of its value.
    """
    wait = _Wait(labels, subject, deadline_s, check, dict(lifelines or {}))
    with owner.waiting(subject, wait.late_workers, deadline_s):
        while wait.open_refs:
            mark_alive()
            for failure in wait.poll():
                root = _root(failure, wait.watched_refs, labels | wait.lifelines)
                if on_failure is None:
                    raise root
                on_failure(root)
    return [wait.values[ref] for ref in labels]


class _Wait:
    """References that are waited for: the values of those that have answered, and the refs that are open still."""

    def __init__(
        self,
        labels: dict[ray.ObjectRef, str],
        subject: str,
        deadline_s: float,
        check: Callable[[list[str]], None] | None,
        lifelines: dict[ray.ObjectRef, str],
    ):
        self.values: dict[ray.ObjectRef, Any] = {}
        self.open_refs = list(labels)
        self.lifelines = lifelines
        self._labels = labels
        self._subject = subject
        self._deadline_s = deadline_s
        self._check = check
        self._began = time.monotonic()
        self._end = self._began + deadline_s
        self._is_slow = False

    @property
    def watched_refs(self) -> list[ray.ObjectRef]:
        return [*self.open_refs, *self.lifelines]

    def late_workers(self) -> list[str]:
        """Return the workers that have not answered. Example: "env/0" for "env/0.collect"."""
        names = self._late_names()
        return list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))

    def poll(self) -> list[RunError]:
        """Wait a second for answers, and return the failures among them; without an answer, those of being late."""
        left_s = self._deadline_s if self._check else self._end - time.monotonic()
        num_returns = 1 + len(self.open_refs) // _AT_ONCE
        timeout_s = min(_POLL_S, max(0.0, left_s))
        ready, _ = ray.wait(self.watched_refs, num_returns=num_returns, timeout=timeout_s)
        if not ready:
            return self._lateness(left_s)
        failures = []
        for ref in ready:
            value = _outcome(ref, self._labels.get(ref) or self.lifelines[ref], max(_POLL_S, left_s))
            if ref in self._labels:
                self.values[ref] = value
            self.lifelines.pop(ref, None)
            failures += [value] if isinstance(value, RunError) else []
        self.open_refs = [ref for ref in self.open_refs if ref not in self.values]
        return failures

    def _lateness(self, left_s: float) -> list[RunError]:
        """Return the failures of a second without an answer: the check's, else that of the limit; warn before it."""
        if self._check:
            return _alarms(self._check, self.late_workers())
        if not self._is_slow and time.monotonic() - self._began > SLOW_S:
            self._is_slow = True
            logger.warning("%s", slow(self._subject, self._late_names(), SLOW_S, self._deadline_s))
        elif left_s <= 0:
            self._end = time.monotonic() + self._deadline_s
            return [late(self._late_names(), self._subject, self._deadline_s)]
        return []

    def _late_names(self) -> list[str]:
        return [self._labels[ref] for ref in self.open_refs]


def _alarms(check: Callable[[list[str]], None], workers: list[str]) -> list[RunError]:
    try:
        check(workers)
    except RunError as alarm:
        return [alarm]
    return []


def _root(failure: RunError, others: Collection[ray.ObjectRef], labels: dict[ray.ObjectRef, str]) -> RunError:
    """Return the cause of a failure, which is a lost worker if one is found within _GRACE_S.

    A rank that loses a peer in a collective may fail before Ray reports the peer's death.
    """
    end = time.monotonic() + _GRACE_S
    others = list(others)
    while failure.exit_status is ExitStatus.unexpected and others and time.monotonic() < end:
        ready, others = ray.wait(others, num_returns=1, timeout=max(0.0, end - time.monotonic()))
        for ref in ready:
            other = _outcome(ref, labels[ref], _POLL_S)
            if isinstance(other, RunError) and other.exit_status is ExitStatus.worker_lost:
                return other
    return failure


def slow(subject: str, names: Collection[str], seconds: float, deadline_s: float) -> str:
    """Return a warning. Example: "reports of the nodes: 20 s so far, at most 60 s; not there: sim.probe"."""
    return f"{subject}: {seconds:.0f} s so far, at most {deadline_s:.0f} s; not there: {', '.join(names)}"


@contextmanager
def warn_if_slow(subject: str, limit_s: float) -> Iterator[None]:
    """Warn after 20 s of a call of Ray that may take `limit_s` and reports no progress."""
    warning = f"{subject}: {SLOW_S:.0f} s so far, at most {limit_s:.0f} s"
    timer = threading.Timer(SLOW_S, logger.warning, ["%s", warning])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _outcome(ref: ray.ObjectRef, label: str, timeout_s: float) -> Any:
    """Return the value of a reference, or its failure as RunError."""
    try:
        return ray.get(ref, timeout=timeout_s)
    except GetTimeoutError:
        return late([label], "the value of a finished request", timeout_s)
    except RayTaskError as error:
        return _raised(label, error)
    except RayError as error:
        return lost(label, error)


def _raised(label: str, error: RayTaskError) -> RunError:
    """Return the failure of a request from the exception of its worker."""
    cause = error.cause
    if isinstance(cause, RunError):
        return cause
    if isinstance(cause, _FULL):
        return _store_full(label, str(error).strip())
    if isinstance(cause, ObjectLostError):
        return _gone(label, "input lost: its node died", error)
    if isinstance(cause, RayError):
        return _gone(label, f"a service of Ray is lost ({type(cause).__name__})", error)
    explained = storage_failure(cause, label, worker=_worker(label), is_own=False)
    return explained or RunError(
        f"{label} failed: {type(cause).__name__}: {cause}",
        cause=str(error).strip(),
        remedy="read the worker's log in the run folder",
        exit_status=ExitStatus.unexpected,
        worker=_worker(label),
    )


def lost(label: str, error: RayError) -> RunError:
    """Return the loss of `label` that an error of Ray means, whatever its class is."""
    text = str(error).strip()
    if isinstance(error, _FULL):
        return _store_full(label, text)
    if isinstance(error, ActorDiedError):
        if _NOT_CREATED in text:
            return _gone(label, f"it could not be started: {text.splitlines()[-1]}", error)
        return _gone(label, "its node left the cluster" if _NODE_DIED in text else "its process ended", error)
    known = (what for kinds, what in _LOSSES if isinstance(error, kinds))
    return _gone(label, next(known, f"Ray gave it up ({type(error).__name__})"), error)


def _store_full(label: str, text: str) -> RunError:
    """Return the error for a full object store, which Ray raises both in a producer and in a consumer of an object."""
    nodes = re.findall(r"\bip=([\d.]+)", text)  # innermost last
    return RunError(
        f"The object store of node {nodes[-1] if nodes else '?'} is full, and so is the disk that it spills to.",
        cause=f"{label}: {text}",
        remedy="Free space there, name larger disks in placement.nodes.<group>.spill_dirs, or raise "
        "cluster.object_store_bytes; then resume the run.",
        exit_status=ExitStatus.storage,
    )


def _gone(label: str, what: str, error: Exception) -> RunError:
    return RunError(
        f"{label}: {what}",
        cause=str(error).strip(),
        remedy="see the worker's log in the run folder, and the kernel log for out-of-memory kills",
        exit_status=ExitStatus.worker_lost,
        worker=_worker(label),
    )


def _worker(label: str) -> str | None:
    """Return the worker of a label; None if it is no worker's. Example: _worker("env/0.collect") == "env/0"."""
    matched = re.match(r"(env|rollout|actor)/\d+", label)
    return matched.group() if matched else None


def late(names: Sequence[str], subject: str, deadline_s: float) -> RunError:
    """Return the error for a wait that passed its deadline. names: of the missing values, as "env/0.collect"."""
    return RunError(
        f"{subject}: not there after {deadline_s:.0f} s; late: {', '.join(names)}",
        cause="the worker is stuck, or slower than the deadline allows",
        remedy="read its log in the run folder; if it is only slow, raise cluster.step_deadline_s",
        exit_status=ExitStatus.stalled,
        worker=_worker(names[0]) if len(names) == 1 else None,
    )


class Inputs:
    """The futures among the arguments of requests. They are held weakly, since a held reference is held memory.

    Example::

        inputs = Inputs()
        inputs.record(update, (step, shard))
        inputs.missing([update], node_id_of)   # {"actor/1": Incoming(("env/0",), 1_300_000)}
    """

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Future[Any], list[weakref.ref[Future[Any]]]] = weakref.WeakKeyDictionary()

    def record(self, request: Future[Any], arguments: Iterable[Any]) -> None:
        """Record the arguments of a request."""
        futures = [weakref.ref(argument) for argument in arguments if isinstance(argument, Future)]
        if futures:
            self._of[request] = futures

    def missing(self, requests: Iterable[Future[Any]], node_id_of: Callable[[str], str]) -> dict[str, Incoming]:
        """Return by worker what exists on other nodes only, without asking them.

        node_id_of: the node of a worker. Values that Ray sends with the request itself are nowhere, and not missing.
        """
        missing = {}
        for request in requests:
            arguments = [argument for held in self._of.get(request, []) if (argument := held()) is not None]
            locations = get_local_object_locations([argument.reference for argument in arguments]) if arguments else {}
            node_id = node_id_of(request.worker)
            late = []
            num_bytes = 0
            for argument in arguments:
                place = locations.get(argument.reference, {})
                if place.get("node_ids") and node_id not in place["node_ids"]:
                    late.append(argument.worker)
                    num_bytes += place.get("object_size") or 0
            if late:
                missing[request.worker] = Incoming(tuple(dict.fromkeys(late)), num_bytes)
        return missing
