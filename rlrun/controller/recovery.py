"""Replaces and counts lost workers, within the limits of a run; any other failure ends the run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rlrun.config.schema import RunConfig
from rlrun.controller.workers import Workers
from rlrun.edges.reports import WorkerLoss
from rlrun.edges.wrong_message import WRONG_AGAIN, WRONG_MESSAGE
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)
_LINK_BROKE = "link-broke"  # the kind of a loss whose worker still runs
_LOST = {ExitStatus.worker_lost, ExitStatus.stalled}
T = TypeVar("T")
W = TypeVar("W")


class Recovery:
    """Replaces the worker that a failure names, until the limits of the section `recovery` are reached.

    Example::

        try:
            operation()
        except RunError as failure:
            recovery.replace(failure)      # raises a failure that ends the run
    """

    def __init__(self, config: RunConfig, workers: Workers, note: Callable[[str], None]):
        self._workers = workers
        self._note = note
        self._num_envs = config.env.num_envs // config.env.num_workers
        self._carries_episodes = config.algorithm.carry_episodes
        self._is_answered_alone = config.rollout.num_workers == config.env.num_workers  # each env worker
        self._is_exact = True  # whether the run is still that of its seed, bit for bit
        self._limits = {
            "env": ("recovery.max_env_restarts", config.recovery.max_env_restarts),
            "rollout": ("recovery.max_rollout_restarts", config.recovery.max_rollout_restarts),
            "actor": ("recovery.max_actor_restarts", config.recovery.max_actor_restarts),
        }
        self._counts: Counter[str] = Counter()
        self._losses: list[WorkerLoss] = []  # of the present training step
        self._wrong: set[str] = set()  # workers that sent a wrong message in it
        self._not_loaded: dict[tuple[str, int], None] = {}  # replaced workers with nothing loaded yet, in order
        self._replaced: list[str] = []  # env and rollout workers, one entry per replacement

    def replace(self, failure: RunError) -> None:
        """Start a new process for the env or rollout worker at fault; its peers go on. Raises a failure that is final.

        If its node is lost, other workers may move too. If only the link to it broke, no worker is replaced, and the
        running requests are repeated.
        """
        role, rank = self._check_restart_limit(failure, ("env", "rollout"))
        if failure.kind == _LINK_BROKE:
            self._replaced.append(f"{role}/{rank}")  # the same break may reach it from other workers, too
            if role == "env":
                self._tell_repeated(rank)
            return
        try:
            started = self._workers.replace(role, rank)
        except RunError as another:
            if another.worker != failure.worker:
                raise
            self.replace(another)  # the new process did not start, which is another loss
            return
        self._began(started, (role, rank))
        if self._carries_episodes and role == "rollout" and failure.kind == WRONG_MESSAGE:
            self.tell_inexact("running episodes that it answered wrongly were dropped")
        self._replaced += [f"{role}/{rank}" for role, rank in started]

    def once(self) -> Callable[[RunError], None]:
        """Return `replace` as a handler for the requests made now. It ignores failures of workers replaced since then.

        It also ignores env and rollout workers once the cluster has ended and no worker can be replaced: the actor
        does not need them to save the run.
        """
        before = len(self._replaced)

        def replace_once(failure: RunError) -> None:
            if not self._workers.can_replace and _role(failure) in ("env", "rollout"):
                logger.info("%s; the cluster has ended", failure.message)
            elif failure.worker not in self._replaced[before:]:
                self.replace(failure)

        return replace_once

    def replace_actors(self, failure: RunError) -> None:
        """Start new processes for all actor ranks, since none can go on alone. Raises a failure that is final."""
        self._check_restart_limit(failure, ("actor",))
        try:
            for rank in range(self._workers.sizes["actor"]):
                self._began(self._workers.replace("actor", rank))
            if self._carries_episodes:
                self.tell_inexact("steps are repeated with other running episodes")
        except RunError as another:
            if _role(another) != "actor":
                raise
            self.replace_actors(another)  # a new process did not start, which is another loss

    def _began(self, started: list[tuple[str, int]], missed: tuple[str, int] | None = None) -> None:
        """Register new processes. missed: the worker whose loss is counted; the others moved from a lost node."""
        for rank in [rank for role, rank in started if role == "env"]:
            self._tell_repeated(rank)
        for role, rank in started:
            if role == "actor":
                continue  # the actor group is loaded as a whole
            self._not_loaded[role, rank] = None
            if (role, rank) != missed:
                worker = f"{role}/{rank}"
                self._losses.append(WorkerLoss(worker, f"{worker}: its place changed", self._num_rows(role)))

    def tell_inexact(self, cause: str, verb: str = "does") -> None:
        """Say, once, that the run differs from now on from one without a loss, or without the resume."""
        if self._is_exact:
            self._is_exact = False
            self._note(f"{cause}: the run {verb} not go on bit for bit")

    def _tell_repeated(self, rank: int) -> None:
        """Say what is not as before when an env worker collects its share again."""
        if self._carries_episodes:
            self.tell_inexact(f"running episodes of env/{rank} were dropped")
        elif not self._is_answered_alone:
            cause = f"the same episodes of env/{rank} are collected again, in batches of another size"
            self.tell_inexact(cause, "may")  # by how these are rounded

    def _num_rows(self, role: str) -> int:
        """Return the number of rows whose running episode is lost with a worker."""
        return self._num_envs if role == "env" else 0

    def not_loaded(self) -> list[tuple[str, int]]:
        """Return the replaced workers that have not loaded their part; `loaded` removes them."""
        return list(self._not_loaded)

    def loaded(self, role: str, rank: int) -> None:
        """Note that a replaced worker is loaded."""
        self._not_loaded.pop((role, rank), None)

    def drain(self) -> list[WorkerLoss]:
        """Return the losses since the last call, at the end of a training step."""
        losses = self._losses
        self._losses = []
        self._wrong.clear()
        return losses

    def _check_restart_limit(self, failure: RunError, roles: tuple[str, ...]) -> tuple[str, int]:
        """Count the loss, and return its role and rank. Raises the failure if it is no loss, or exceeds a limit."""
        role = _role(failure)
        rank = (failure.worker or "").partition("/")[2]
        if role not in roles or not _is_loss(failure, role):
            raise failure
        key, limit = self._limits[role]
        if failure.key == key or failure.kind == WRONG_AGAIN:
            raise failure  # it is final since the operation
        if failure.kind == WRONG_MESSAGE and failure.worker in self._wrong:
            raise _wrong_again(failure)
        if self._counts[role] >= limit:
            raise _too_often(failure, key, limit)
        self._counts[role] += 1
        if failure.kind == WRONG_MESSAGE:
            self._wrong.add(f"{role}/{rank}")
        message = failure.message.splitlines()[0]
        logger.info("%s\n%s", message, failure.cause)
        what = "all actor ranks start again" if role == "actor" else "it is replaced"
        if failure.kind == _LINK_BROKE:
            self._note(f"{message}; its request is repeated ({self._counts[role]} of at most {limit})")
            return role, int(rank)
        self._note(f"{message}; {what} ({self._counts[role]} of at most {limit})")
        self._losses.append(WorkerLoss(f"{role}/{rank}", message, self._num_rows(role)))
        return role, int(rank)


def _role(failure: RunError) -> str:
    """Return the role of the worker at fault; "" if no worker is."""
    return (failure.worker or "").partition("/")[0]


def _is_loss(failure: RunError, role: str) -> bool:
    """Return whether a failure is a loss. An env or rollout worker that raises counts too: it can be replaced."""
    is_replaceable = failure.exit_status in _LOST or failure.kind == WRONG_MESSAGE
    return is_replaceable or (role != "actor" and failure.exit_status is ExitStatus.unexpected)


def _wrong_again(failure: RunError) -> RunError:
    return RunError(
        f"{failure.message}; so does the process that replaced it",
        cause=failure.cause,
        remedy=failure.remedy,
        exit_status=failure.exit_status,
        worker=failure.worker,
        kind=WRONG_AGAIN,
    )


def _too_often(failure: RunError, key: str, limit: int) -> RunError:
    return RunError(
        f"{failure.message.splitlines()[0].rstrip('.')}; {limit} replacement{'' if limit == 1 else 's'} went before.",
        key=key,
        value=limit,
        cause=failure.cause,
        remedy=f"{failure.remedy or 'Read the first loss in logs/driver-0.log'}; raise {key} only if losses are rare "
        "and unrelated.",
        exit_status=failure.exit_status,
        worker=failure.worker,
        row=failure.row,
        kind=failure.kind,
    )
