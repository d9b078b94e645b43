"""Update of the rollout workers' weights by the actor workers, with replaced workers on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.workers import (
    ActorGroup,
    Future,
    WorkerGroup,
    Workers,
    value_of,
)
from rlrun.edges.weights import DeviceBucket, SharedBucket, WeightBucket
from rlrun.edges.wrong_message import WRONG_MESSAGE
from rlrun.placement.weight_ways import weight_ways
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.workers.rollout_worker import RolloutWorker

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
        rollouts: WorkerGroup[RolloutWorker],
        note: Callable[[str], None],
    ):
        """note: called with a sentence if weights arrived damaged, and are sent again, or cannot go as planned."""
        self._note = note
        self._config = config
        self._deadline_s = config.cluster.step_deadline_s
        self._workers = workers
        self._actors = actors
        self._rollouts = rollouts
        self.held: int | None = None  # the version that all rollout workers hold; None: unknown
        self.bucket_counts = (0, 0)  # of a version without and with the base; known once the actor is loaded
        self._has_base = False  # whether all rollout workers have the base under the adapters
        self._is_begun = False  # whether rollout workers may have a part of a version
        self._is_connected = False  # whether the next three hold for the present workers
        self._senders: dict[int, int] = {}  # rollout worker with device memory -> the actor rank that writes there
        self._is_shared: bool | None = None  # whether the others share memory with rank 0; None: there are no others
        self._fault = ""  # why no rollout worker gets weights by its device memory, though the plan says so

    @property
    def num_buckets(self) -> int:
        """Return the number of buckets of the next version, per rollout worker."""
        return self.bucket_counts[self._has_base]

    def forget(self) -> None:
        """Let the next `send` send all weights; called after workers were replaced."""
        self.held = None
        self._has_base = False
        self._is_connected = False

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
            self.send_again(version, failure)

    def send_again(self, version: int, failure: RunError) -> None:
        """Send all weights of a version that arrived damaged, as `failure` says. Raises RunError."""
        self._note(f"{failure.message}; they are sent again")
        self.forget()
        self._is_begun = True
        self._send(version)

    def _send(self, version: int) -> None:
        if self._is_begun:  # also lets them finish with what is in their device memory
            self._wait(self._rollouts.submit_all(lambda rollout: rollout.discard_weights()), version)
        self._is_begun = True
        has_base = self._has_base
        if self._config.weight_sync.transport is WeightTransport.collective:
            sending = self._actors.submit_all(lambda actor: actor.broadcast(version, has_base))
            receiving = self._rollouts.submit_all(lambda rollout: rollout.receive())
            self._wait([*sending, *receiving], version)
        else:
            self._connect()
            self._send_buckets(version)
        self.held = version
        self._has_base = True
        self._is_begun = False

    # --- ways -------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Find the ways to the present rollout workers; actor ranks open the device memory of those beside them."""
        if self._is_connected:
            return
        had_senders = bool(self._senders)  # which close the memory of workers that have moved
        self._find_ways()
        if (self._senders or had_senders) and (fault := self._open_device_memory()):
            if self._config.weight_sync.transport is WeightTransport.device:
                raise _no_device_memory(fault)
            self._note(f"weights go through memory of the host, and not of accelerators: {fault}")
            self._fault = fault
            self._find_ways()
            self._open_device_memory()  # none: closes what other ranks have opened
        self._is_connected = True

    def _find_ways(self) -> None:
        ways = weight_ways(self._config, self._workers.plan, has_ipc=not self._fault)
        self._senders = {way.rollout: way.sender for way in ways if way.transport is WeightTransport.device}
        others = [way for way in ways if way.rollout not in self._senders]
        self._is_shared = others[0].is_shared if others else None

    def _open_device_memory(self) -> str:
        """Return why an actor rank or a rollout worker cannot; "" if all can."""
        what = "device memory for weights"
        largest = self._actors.submit(0, lambda actor: actor.largest_bucket())
        shared = {
            rank: self._rollouts.submit(rank, lambda rollout: rollout.share_device_memory(value_of(largest)))
            for rank in self._senders
        }
        opening = []
        for sender in range(len(self._actors)):
            beside = [value_of(shared[rank]) for rank, one in self._senders.items() if one == sender]
            opening.append(self._actors.submit(sender, lambda actor: actor.open_device_memory(*beside)))  # noqa: B023
        self._workers.wait(list(shared.values()), what, self._deadline_s)
        faults = self._workers.wait(opening, what, self._deadline_s)
        return next((fault for fault in faults if fault), "")

    # --- buckets ----------------------------------------------------------------------------

    def _send_buckets(self, version: int) -> None:
        has_base = self._has_base
        is_shared = self._is_shared
        under_way: deque[list[Future[Any]]] = deque()
        for index in range(self.num_buckets):
            if len(under_way) == _UNDER_WAY:
                self._wait(under_way.popleft(), version)
            packed = self._actors.submit_all(
                lambda actor: actor.pack(version, index, has_base, is_shared)  # noqa: B023
            )
            senders = [self._senders.get(rank, 0) for rank in range(len(self._rollouts))]
            waited: list[Future[Any]] = [one for rank, one in enumerate(packed) if rank not in senders]
            for rank, sender in enumerate(senders):
                bucket = cast("Future[WeightBucket | SharedBucket | DeviceBucket]", packed[sender])
                waited.append(self._rollouts.submit(rank, lambda rollout: rollout.apply(value_of(bucket))))  # noqa: B023
            under_way.append(waited)
        self._wait([future for futures in under_way for future in futures], version)

    def _wait(self, futures: list[Future[Any]], version: int) -> None:
        self._workers.wait(futures, f"weights of version {version}", self._deadline_s)


def _no_device_memory(fault: str) -> RunError:
    return RunError(
        "Actor ranks cannot write weights into memory of the rollout workers' accelerators.",
        "weight_sync.transport",
        WeightTransport.device.value,
        cause=fault,
        remedy="Leave weight_sync.transport out: weights then go through memory of the host. CUDA IPC needs Linux and "
        "processes that may see each other (no container or MIG instance of their own).",
        exit_status=ExitStatus.placement,
    )
