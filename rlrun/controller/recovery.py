"""Which losses a run survives, and how often: lost workers are replaced and counted, anything else ends the run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from rlrun.config.schema import RunConfig
from rlrun.controller.workers import Workers
from rlrun.data.messages import WorkerLoss
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

logger = logging.getLogger(__name__)

_LOST = {ExitStatus.worker_lost, ExitStatus.stalled}


class Recovery:
    """Replaces the worker that a failure names, until the limits of the section `recovery` are reached.

    Example::

        try:
            operation()
        except RunError as failure:
            recovery.replace(failure)      # raises what cannot be survived
    """

    def __init__(self, config: RunConfig, workers: Workers, note: Callable[[str], None]):
        self._workers = workers
        self._note = note
        self._num_envs = config.env.num_envs // config.env.num_workers
        self._limits = {
            "env": ("recovery.max_env_restarts", config.recovery.max_env_restarts),
            "rollout": ("recovery.max_rollout_restarts", config.recovery.max_rollout_restarts),
            "actor": ("recovery.max_actor_restarts", config.recovery.max_actor_restarts),
        }
        self._counts: Counter[str] = Counter()
        self._losses: list[WorkerLoss] = []
        self._bare: dict[tuple[str, int], None] = {}  # replaced, nothing loaded yet; in order
        self._replaced: list[str] = []  # env and rollout workers, each time one was

    def replace(self, failure: RunError) -> None:
        """A new process for the env or rollout worker at fault; its peers go on. Raises what is final.

        Where its node is lost, others may get another place too.
        """
        role, rank = self._admitted(failure, ("env", "rollout"))
        started = self._workers.replace(role, rank)
        self._began(started, (role, rank))
        self._replaced += [f"{role}/{rank}" for role, rank in started]

    def once(self) -> Callable[[RunError], None]:
        """As `replace`, for requests made now: what follows from a worker replaced since are its last words.

        Where nobody can be replaced any more, because the cluster has ended, env and rollout workers are passed over:
        whoever still saves the run does not need them.
        """
        before = len(self._replaced)

        def replace_once(failure: RunError) -> None:
            if not self._workers.can_replace and _role(failure) in ("env", "rollout"):
                logger.info("%s; the cluster has ended", failure.message)
            elif failure.worker not in self._replaced[before:]:
                self.replace(failure)

        return replace_once

    def replace_actors(self, failure: RunError) -> None:
        """New processes for all actor ranks: none can go on without the others. Raises what is final."""
        self._admitted(failure, ("actor",))
        for rank in range(self._workers.sizes["actor"]):
            self._began(self._workers.replace("actor", rank))

    def _began(self, started: list[tuple[str, int]], missed: tuple[str, int] | None = None) -> None:
        """missed: the one whose loss is counted already. The others changed their place with a lost node."""
        for role, rank in started:
            if role == "actor":
                continue  # the group is loaded together
            self._bare[role, rank] = None
            if (role, rank) != missed:
                worker = f"{role}/{rank}"
                self._losses.append(WorkerLoss(worker, f"{worker}: its place changed", self._num_rows(role)))

    def _num_rows(self, role: str) -> int:
        """Rows whose running episode goes with a worker."""
        return self._num_envs if role == "env" else 0

    def bare(self) -> list[tuple[str, int]]:
        """Workers that were replaced and have nothing loaded; `loaded` takes them off."""
        return list(self._bare)

    def loaded(self, role: str, rank: int) -> None:
        """A replaced worker is where its peers are."""
        self._bare.pop((role, rank), None)

    def drain(self) -> list[WorkerLoss]:
        """The losses since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def _admitted(self, failure: RunError, roles: tuple[str, ...]) -> tuple[str, int]:
        """Count the loss; its role and rank. Raises the failure itself if it is none, or one too many."""
        role, rank = _role(failure), (failure.worker or "").partition("/")[2]
        if role not in roles or not _is_loss(failure, role):
            raise failure
        key, limit = self._limits[role]
        if failure.key == key:
            raise failure  # it was one too many already, within the operation
        if self._counts[role] >= limit:
            raise _too_often(failure, key, limit)
        self._counts[role] += 1
        message = failure.message.splitlines()[0]
        logger.info("%s\n%s", message, failure.cause)
        what = "all actor ranks start again" if role == "actor" else "it is replaced"
        self._note(f"{message}; {what} ({self._counts[role]} of at most {limit})")
        self._losses.append(WorkerLoss(f"{role}/{rank}", message, self._num_rows(role)))
        return role, int(rank)


def _role(failure: RunError) -> str:
    """Of the worker at fault; empty where it is none."""
    return (failure.worker or "").partition("/")[0]


def _is_loss(failure: RunError, role: str) -> bool:
    """An env or rollout worker that raises is replaced as well: it holds nothing that its successor cannot load."""
    return failure.exit_status in _LOST or (role != "actor" and failure.exit_status is ExitStatus.unexpected)


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
    )
