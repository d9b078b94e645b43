"""Sends the actor's weights to the rollout workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.future import Future
from rlrun.controller.worker_group import ActorGroup, RolloutGroup
from rlrun.controller.workers import Workers
from rlrun.data.message_checks import WRONG_MESSAGE
from rlrun.data.messages import SharedBucket, WeightBucket
from rlrun.system.errors import RunError

_UNDER_WAY = 2  # buckets on the way: one is applied while the next is packed


class WeightUpdate:
    """Sends all buckets of a version to every rollout worker: one after another, or in one broadcast.

    Example: updates.send(4); updates.held == 4
    """

    def __init__(
        self,
        config: RunConfig,
        workers: Workers,
        actors: ActorGroup,
        rollouts: RolloutGroup,
        note: Callable[[str], None],
    ):
        """note: called with a sentence if weights arrived damaged, and are sent again."""
        self._note = note
        self._is_collective = config.weight_sync.transport is WeightTransport.collective
        self._deadline_s = config.cluster.step_deadline_s
        self._workers, self._actors, self._rollouts = workers, actors, rollouts
        self.held: int | None = None  # the version that all rollout workers hold; None: unknown
        self.num_buckets = 0  # per version and rollout worker; known once the actor is loaded

    def forget(self) -> None:
        """Let the next `send` send all buckets; called after workers were replaced."""
        self.held = None

    def send(self, version: int) -> None:
        """Send the actor's weights as `version`, unless every rollout worker holds that version. Raises RunError.

        Weights that arrive damaged are sent once more: a flipped bit need not cost the actor ranks.
        """
        if self.held == version:
            return
        try:
            self._send(version)
        except RunError as failure:
            if failure.kind != WRONG_MESSAGE:
                raise
            self._note(f"{failure.message}; they are sent again")
            self._wait(self._rollouts.discard_weights(), version)
            self._send(version)
        self.held = version

    def _send(self, version: int) -> None:
        if self._is_collective:
            self._wait([*self._actors.broadcast(version), *self._rollouts.receive()], version)
        else:
            self._send_buckets(version)

    def _send_buckets(self, version: int) -> None:
        is_shared = self._workers.share_memory("actor", 0, "rollout")  # then only a reference goes through Ray's store
        under_way: deque[list[Future[Any]]] = deque()
        for index in range(self.num_buckets):
            if len(under_way) == _UNDER_WAY:
                self._wait(under_way.popleft(), version)
            packed, *others = self._actors.pack(version, index, is_shared)
            bucket = cast("Future[WeightBucket | SharedBucket]", packed)  # rank 0 has it
            under_way.append([*others, *self._rollouts.apply(bucket)])
        self._wait([future for futures in under_way for future in futures], version)

    def _wait(self, futures: list[Future[Any]], version: int) -> None:
        self._workers.wait(futures, f"weights of version {version}", self._deadline_s)
