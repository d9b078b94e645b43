"""Episodes that env workers simulate while rollout workers answer; the share of a lost worker is repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlrun.controller.recovery import Recovery
from rlrun.controller.workers import (
    EpisodesRequest,
    Future,
    Workers,
    recorded,
)
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    pass


class Collection:
    """One request to every env worker, and the results so far.

    Example::

        collection = Collection(workers, recovery, requests, [2, 2], "trajectories of step 3", check)
        collection.start()
        while not collection.is_complete:
            collection.wait(deadline_s)      # again after a loss
        results = collection.results()
    """

    def __init__(
        self,
        workers: Workers,
        recovery: Recovery,
        requests: Sequence[EpisodesRequest],
        num_returns: Sequence[int],
        subject: str,
        check: Callable[[int, Any], None],
    ):
        """requests: by env rank. num_returns: how many values each worker returns, by env rank. check: raises RunError
        for an env rank and its first value if that cannot be right; the worker is then replaced, as if it were lost."""
        self._check = check
        self._workers = workers
        self._recovery = recovery
        self._requests = requests
        self._num_returns = num_returns
        self._subject = subject
        self._running: dict[int, tuple[Future[Any], ...]] = {}  # by env rank
        self._finished: dict[int, tuple[Any, ...]] = {}  # by env rank: first as a value, the others as futures
        self._on_failure: Callable[[RunError], None] = recovery.once()

    @property
    def is_complete(self) -> bool:
        return len(self._finished) == len(self._requests)

    def start(self) -> None:
        """Send the request to every env worker whose results are missing."""
        missing = [rank for rank in range(len(self._requests)) if rank not in self._finished]
        self._on_failure = self._recovery.once()
        self._running = self._workers.run_episodes(
            {rank: recorded(self._requests[rank]) for rank in missing},
            {rank: self._num_returns[rank] for rank in missing},
        )

    def wait(self, deadline_s: float) -> None:
        """Wait for the running requests; if none is running, start the missing ones first. Raises RunError."""
        self.drop_lost()
        if not self._running:
            self.start()
        running = self._running
        self._running = {}
        firsts = [futures[0] for futures in running.values()]
        values = self._workers.outcomes(firsts, self._subject, deadline_s, self._on_failure)
        for (rank, futures), value in zip(running.items(), values, strict=True):
            if not isinstance(value, RunError) and self._is_right(rank, value):
                self._finished[rank] = (value, *futures[1:])
        self.drop_lost()

    def _is_right(self, rank: int, value: Any) -> bool:
        try:
            self._check(rank, value)
        except RunError as failure:
            self._on_failure(failure)
            return False
        return True

    def drop_lost(self) -> None:
        """Drop the results of env workers that were replaced: they may be lost with their node."""
        for role, rank in self._recovery.not_loaded():
            if role == "env":
                self._finished.pop(rank, None)
                self._running.pop(rank, None)

    def results(self) -> list[tuple[Any, ...]]:
        """Return, by env rank, each worker's first value and the futures of its others."""
        return [self._finished[rank] for rank in range(len(self._requests))]
