"""The start of the workers: connects their groups, and loads policies in waves that fit into the nodes' memory."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TypeVar

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.future import Future
from rlrun.controller.worker_group import ActorGroup, RolloutGroup
from rlrun.controller.workers import Workers
from rlrun.data.fit import CameraMatch, policy_cameras
from rlrun.data.messages import PolicySpaces, Spaces
from rlrun.observability.memory_spread import free_memory, outlier_workers
from rlrun.placement.load_waves import load_bytes, loading_room, waves
from rlrun.placement.policy_size import count_parameters
from rlrun.system.errors import ExitStatus, RunError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Startup:
    """Connects actor and rollout workers, and loads their policies."""

    def __init__(
        self,
        config: RunConfig,
        workers: Workers,
        actors: ActorGroup,
        rollouts: RolloutGroup,
        note: Callable[[str], None],
    ):
        """note: called with sentences on uneven memory."""
        self._config, self._workers, self._note = config, workers, note
        self._actors, self._rollouts = actors, rollouts
        self._start_s, self._step_s = config.cluster.start_deadline_s, config.cluster.step_deadline_s

    # --- meshes -----------------------------------------------------------------------------

    def form_actor_mesh(self) -> None:
        """Connect the actor ranks: all of them, or a new group after a loss."""
        address = self._actors.address()
        port = self._config.cluster.store_port
        if port is None:
            (port,) = self._actors.wait([self._actors.free_port(address)], "port of the actor mesh", self._step_s)
        backend = self._workers.plan.training_backend.value
        self._actors.wait(self._actors.join(address, port, backend), "actor mesh", self._start_s)

    def form_weight_mesh(self) -> None:
        """Connect actor rank 0 and the rollout workers, with the collective transport only."""
        is_collective = self._config.weight_sync.transport is WeightTransport.collective
        if not is_collective or not len(self._rollouts):
            return
        address = self._actors.address()
        wanted = self._config.cluster.store_port
        opening = self._actors.open_weight_group(address, 0 if wanted is None else wanted + 1)
        (port,) = self._actors.wait([opening], "weight mesh opened", self._step_s)
        backend = self._workers.plan.sync_backend.value
        joining = [self._actors.join_weight_group(backend)]
        joining += self._rollouts.join_weight_group(address, port, backend)
        self._workers.wait(joining, "weight mesh", self._start_s)

    # --- policies ---------------------------------------------------------------------------

    def load_actor(self, policy_folder: str) -> int:
        """Load `policy_folder` on every actor rank. Returns the number of weight buckets."""
        self._load_in_waves(self._actors, policy_folder, lambda rank: self._actors.load(rank, policy_folder))
        return self._actors.wait([self._actors.num_buckets()], "bucket layout", self._step_s)[0]

    def load_rollout(self, policy_folder: str, is_final: bool, spaces: Spaces) -> CameraMatch | None:
        """Load `policy_folder` on every rollout worker. Raises RunError if it does not fit the simulators.

        spaces: of the simulators. Returns which of their cameras the policy takes; None: its folder does not name them.
        """
        loaded = self._load_in_waves(
            self._rollouts, policy_folder, lambda rank: self._rollouts.load(rank, policy_folder, is_final)
        )
        self._check_fit(policy_folder, loaded[0], spaces)
        named = loaded[0].cameras
        return policy_cameras(named, spaces.cameras, spaces.num_images, self._config.policy.cameras) if named else None

    def _load_in_waves(
        self, group: ActorGroup | RolloutGroup, policy_folder: str, load: Callable[[int], Future[T]]
    ) -> list[T]:
        """Load as many workers of a node at a time as fit into its memory. Returns the values of `load` by rank."""
        plan = self._workers.plan
        policy = dataclasses.replace(self._config.policy, path=policy_folder)
        each = load_bytes(self._config, count_parameters(dataclasses.replace(self._config, policy=policy)))[group.role]
        waiting, num_waves = plan.of(group.role), 0
        values: dict[int, T] = {}
        while waiting:
            free = {status.worker: status.host_free_bytes for status in self._workers.statuses()}
            wave, num_waves = waves(waiting, each, loading_room(plan, free))[0], num_waves + 1
            subject = f"{group.role} loads, wave {num_waves}: {len(wave)} of {len(waiting)}"
            loaded = group.wait([load(slot.rank) for slot in wave], subject, self._start_s)
            values |= zip((slot.rank for slot in wave), loaded, strict=True)
            waiting = tuple(slot for slot in waiting if slot.rank not in values)
        self.report_memory(f"{group.role} loaded")
        return [values[rank] for rank in sorted(values)]

    def report_memory(self, moment: str) -> None:
        """Log the free memory of all nodes, and note workers that hold unusually much."""
        statuses = self._workers.statuses()
        logger.info("%s: %s", moment, free_memory(statuses))
        for worker in outlier_workers(statuses):
            self._note(f"{moment}: {worker}")

    def _check_fit(self, policy_folder: str, policy: PolicySpaces, wanted: Spaces) -> None:
        """Raise RunError if the policy has other dimensions than the simulators."""
        for what, found, has in (
            ("action dimensions", policy.num_actions, wanted.num_actions),
            ("proprioceptive values", policy.num_proprio or wanted.num_proprio, wanted.num_proprio),
        ):
            if found != has:
                raise RunError(
                    f"The policy in {policy_folder} does not fit the simulator: {found} {what} against {has}.",
                    key="env",
                    value=self._config.env.simulator,
                    remedy="Set env (controlled, proprio, or the task) as the policy was trained with; config.yaml in "
                    "its run folder says. Or take another policy.",
                    exit_status=ExitStatus.bad_input,
                )
