"""Synchronous batches: the env workers of a rollout worker share forward passes, always in the same order.

The actions of a policy therefore never depend on timing. Groups of env workers form a pipeline: during the forward
pass of one group, the others simulate.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import numpy as np

from rlrun.edges.actions import ActionChunk
from rlrun.edges.connection import Result
from rlrun.edges.observations import Observation
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry

Destination = TypeVar("Destination")  # of a result
Act = Callable[[Sequence[Observation]], list[ActionChunk]]
_WEIGHTS_FROM = "actor/0"  # the worker that sends the weights


class Batcher(Generic[Destination]):
    """Batch of the observations of all members, answered with one forward pass once it is complete.

    The pass waits for the policy version that the observations need. One thread calls `add` and `results`; any thread
    may call `open` and `leave`.
    """

    def __init__(
        self,
        act: Act,
        policy_version: Callable[[], int],
        telemetry: Telemetry,
        deadline_s: float,
        is_policy_busy: Callable[[], bool] = lambda: False,
    ):
        """policy_version: returns the version of the weights in use. deadline_s: time limit of a member's wait for the
        others, and of a batch's wait for its weights. is_policy_busy: returns whether the policy is in use, for example
        to apply weights: a batch then waits for this worker itself, not for the sender of the weights."""
        self._is_policy_busy = is_policy_busy
        self._act = act
        self._policy_version = policy_version
        self._telemetry = telemetry
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._collection = 0
        self._members: set[int] = set()
        self._batch: dict[
            int, tuple[Observation, Destination]
        ] = {}  # by member: its observation, the destination of its result
        self._since = 0.0  # start of the current wait
        self._refused: list[tuple[Destination, Result]] = []  # requests that no forward pass will answer
        self._missing: tuple[str, ...] = ()  # members that have not sent; replaced, never changed, so read unlocked
        self._wait: tuple[str, AbstractContextManager] | None = None  # the wait that is open in the telemetry

    def open(self, collection: int, members: Collection[int]) -> None:
        """Start a new collection of these env workers; requests of an older one get an error."""
        with self._lock:
            self._refused += [
                (to, self._old_collection_error(member, self._collection)) for member, (_, to) in self._batch.items()
            ]
            self._collection = collection
            self._members = set(members)
            self._batch.clear()

    def leave(self, collection: int, member: int) -> None:
        """Remove an env worker that has finished or died; the others no longer wait for it."""
        with self._lock:
            if collection == self._collection:
                self._members.discard(member)
                self._batch.pop(member, None)

    def add(self, collection: int, observation: Observation, to: Destination) -> None:
        """Add an observation of a member. `results` returns its destination `to` once, with the actions."""
        with self._lock:
            member = observation.env_worker
            if collection != self._collection or member not in self._members:
                self._refused.append((to, self._old_collection_error(member, collection)))
                return
            if not self._batch:
                self._since = time.monotonic()
            self._batch[member] = observation, to
            if self._batch.keys() == self._members:
                self._since = time.monotonic()

    def results(self) -> list[tuple[Destination, Result]]:
        """Return the results that are ready; runs the forward pass of a complete batch."""
        with self._lock:
            results = self._refused
            self._refused = []
            batch = dict(sorted(self._batch.items()))
            self._missing = ()
            late = self._late(batch) if batch else None
            is_ready = bool(batch) and late is None
            if isinstance(late, RunError):
                results += [(to, late) for _, to in batch.values()]
            if is_ready or isinstance(late, RunError):
                self._batch.clear()
            self._update_wait("observations" if self._missing else "weights" if self._batch else None)
            collection = self._collection
        return results + self._run_policy(collection, batch) if is_ready else results

    def _late(self, batch: Mapping[int, tuple[Observation, Destination]]) -> RunError | bool | None:
        """Return None if the batch can be answered, True if it still waits, and the error if it has waited too long."""
        missing = sorted(self._members - set(batch))
        self._missing = tuple(f"env/{member}" for member in missing)
        needed = max(observation.policy_version for observation, _ in batch.values())
        held = self._policy_version()
        if not missing and held >= needed:
            return None
        if time.monotonic() <= self._since + self._deadline_s:
            return True
        return self._missing_observations_error(missing) if missing else self._missing_weights_error(needed, held)

    def _run_policy(
        self, collection: int, batch: dict[int, tuple[Observation, Destination]]
    ) -> list[tuple[Destination, Result]]:
        try:
            results: Sequence[Result] = self._act([observation for observation, _ in batch.values()])
        except RunError as failure:
            results = [failure] * len(batch)
        except Exception as failure:  # policies may raise any exception, and the env workers need it
            results = [_policy_error(self._telemetry.worker, failure)] * len(batch)
        with self._lock:
            if collection != self._collection:  # the driver has aborted this collection meanwhile
                results = [self._old_collection_error(member, collection) for member in batch]
        return list(zip((to for _, to in batch.values()), results, strict=True))

    def _update_wait(self, what: str | None) -> None:
        """Keep one wait open in the telemetry while a batch is incomplete or waits for its weights."""
        if self._wait is not None and self._wait[0] != what:
            self._wait[1].__exit__(None, None, None)
            self._wait = None
        if what is not None and self._wait is None:
            on = (lambda: self._missing) if what == "observations" else self._weights_sender
            self._wait = what, self._telemetry.waiting(what, on, self._deadline_s)
            self._wait[1].__enter__()

    def _weights_sender(self) -> tuple[str, ...]:
        return () if self._is_policy_busy() else (_WEIGHTS_FROM,)

    def _old_collection_error(self, member: int, collection: int) -> RunError:
        return RunError(
            f"env worker {member} sends an observation of collection {collection}, which is over",
            cause="the driver aborted it after a worker was lost",
            exit_status=ExitStatus.worker_lost,
        )

    def _missing_observations_error(self, missing: list[int]) -> RunError:
        return RunError(
            f"env workers {missing} have sent no observation for {self._deadline_s:.0f} s",
            cause="they share one rollout worker, which answers them together; the others wait for them",
            remedy="look at the logs and stacks of the missing ones",
            exit_status=ExitStatus.stalled,
            worker=f"env/{missing[0]}",
        )

    def _missing_weights_error(self, needed: int, held: int) -> RunError:
        return RunError(
            f"policy version {needed} has not arrived for {self._deadline_s:.0f} s",
            cause=f"the observations need it; {self._telemetry.worker} has "
            + (f"version {held}" if held >= 0 else "no weights yet"),
            remedy="look at the logs and stacks of the actor workers, and at the network between them and this one",
            exit_status=ExitStatus.stalled,
            worker=_WEIGHTS_FROM,
        )


def _policy_error(worker: str, failure: Exception) -> RunError:
    return RunError(
        f"{worker}.act failed: {type(failure).__name__}: {failure}",
        cause="".join(traceback.format_exception(failure)).strip(),
        remedy="the worker's log in the run folder has what came before",
        exit_status=ExitStatus.unexpected,
        worker=worker,
    )


def split_into_groups(members: Collection[int], num_groups: int) -> list[list[int]]:
    """Return groups of consecutive members, of sizes that differ by at most one; no group is empty.

    Example: split_into_groups({0, 1, 2}, 2) == [[0, 1], [2]]
    """
    groups = np.array_split(sorted(members), min(num_groups, max(1, len(members))))
    return [group.tolist() for group in groups]


class Pipeline(Generic[Destination]):
    """One `Batcher` for each group of env workers; the policy answers one group at a time.

    Groups are fixed when a collection opens, so that results do not depend on timing.
    """

    def __init__(
        self,
        act: Act,
        policy_version: Callable[[], int],
        telemetry: Telemetry,
        num_groups: int,
        policy_lock: threading.Lock,
        deadline_s: float,
    ):
        """policy_lock: held during a forward pass. For the other arguments see `Batcher`."""

        def locked_act(observations: Sequence[Observation]) -> list[ActionChunk]:
            with policy_lock:
                return act(observations)

        self._batchers: list[Batcher[Destination]] = [
            Batcher(locked_act, policy_version, telemetry, deadline_s, policy_lock.locked) for _ in range(num_groups)
        ]
        self._batcher_of: dict[int, Batcher[Destination]] = {}  # by env worker
        self.collection = 0  # number of the newest collection

    def open(self, collection: int, members: Collection[int]) -> None:
        """See `Batcher.open`; opens all groups of these env workers."""
        groups = split_into_groups(members, len(self._batchers))
        groups += [[] for _ in range(len(self._batchers) - len(groups))]
        pairs = list(zip(self._batchers, groups, strict=True))
        self._batcher_of = {member: batcher for batcher, group in pairs for member in group}
        for batcher, group in pairs:
            batcher.open(collection, group)
        self.collection = collection

    def leave(self, collection: int, member: int) -> None:
        """See `Batcher.leave`."""
        self._batcher(member).leave(collection, member)

    def add(self, collection: int, observation: Observation, to: Destination) -> None:
        """See `Batcher.add`; adds to the group of the env worker."""
        self._batcher(observation.env_worker).add(collection, observation, to)

    def results(self) -> Iterator[tuple[Destination, Result]]:
        """Yield the results of `Batcher.results`; those of a group come before the next group's forward pass."""
        for batcher in self._batchers:
            yield from batcher.results()

    def _batcher(self, member: int) -> Batcher[Destination]:
        """Return the batcher of an env worker; any batcher for one of an older collection, which all of them refuse."""
        return self._batcher_of.get(member, self._batchers[0])
