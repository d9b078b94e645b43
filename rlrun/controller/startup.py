"""Startup of all workers, and of replaced ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.recovery import T, W
from rlrun.controller.workers import ActorGroup, WorkerGroup, Workers
from rlrun.data.fit import CameraMatch, match_policy_cameras
from rlrun.edges.spaces import PolicySpaces, Spaces
from rlrun.observability.trends import free_memory, outlier_workers
from rlrun.placement.budget import holds_base_on_device
from rlrun.placement.memory import actor_memory, load_bytes, loading_room, waves
from rlrun.placement.policy_counts import policy_counts
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.workers.rollout_worker import RolloutWorker


logger = logging.getLogger(__name__)


class Startup:
    """Connects actor and rollout workers, and loads their policies."""

    def __init__(
        self,
        config: RunConfig,
        workers: Workers,
        actors: ActorGroup,
        rollouts: WorkerGroup[RolloutWorker],
        note: Callable[[str], None],
    ):
        """note: called with sentences on uneven memory."""
        self._config = config
        self._workers = workers
        self._note = note
        self._actors = actors
        self._rollouts = rollouts
        self._start_s = config.cluster.start_deadline_s
        self._step_s = config.cluster.step_deadline_s

    def configure(self, config: RunConfig) -> None:
        """Take another configuration, with which workers are loaded from now on."""
        self._config = config

    # --- meshes -----------------------------------------------------------------------------

    def form_actor_mesh(self) -> None:
        """Connect the actor ranks: all of them, or a new group after a loss."""
        address = self._workers.address("actor", 0)
        port = self._config.cluster.store_port
        if port is None:
            port = self._actors.call_first(
                lambda actor: actor.free_port(address), "port of the actor mesh", self._step_s
            )
        backend = self._workers.plan.training_backend.value
        self._actors.call(lambda actor: actor.join(address, port, backend), "actor mesh", self._start_s)

    def form_weight_mesh(self) -> None:
        """Connect actor rank 0 and the rollout workers, with the collective transport only."""
        is_collective = self._config.weight_sync.transport is WeightTransport.collective
        if not is_collective or not len(self._rollouts):
            return
        address = self._workers.address("actor", 0)
        wanted = self._config.cluster.store_port
        wanted = 0 if wanted is None else wanted + 1
        port = self._actors.call_first(
            lambda actor: actor.open_weight_group(address, wanted), "weight mesh opened", self._step_s
        )
        backend = self._workers.plan.sync_backend.value
        joining = [self._actors.submit(0, lambda actor: actor.join_weight_group(backend))]
        joining += self._rollouts.submit_all(lambda rollout: rollout.join_weight_group(address, port, backend))
        self._workers.wait(joining, "weight mesh", self._start_s)

    # --- policies ---------------------------------------------------------------------------

    def load_actor(self, policy_folder: str) -> tuple[int, int]:
        """Load `policy_folder` on every actor rank. Returns the numbers of weight buckets, see `ActorWorker`.

        After a loss the new processes wait until the killed ones have given back what a rank holds between updates.
        """
        room_bytes = actor_memory(self._config, policy_counts(self._config)).resident_bytes
        self._load_in_waves(self._actors, lambda actor: actor.load(policy_folder, room_bytes))
        return self._actors.call_first(lambda actor: actor.num_buckets(), "bucket layout", self._step_s)

    def load_rollout(self, policy_folder: str, is_final: bool, spaces: Spaces) -> CameraMatch | None:
        """Load `policy_folder` on every rollout worker. Raises RunError if it does not fit the simulators.

        spaces: of the simulators. Returns which of their cameras the policy takes; None: its folder does not name them.
        """
        loaded = self._load_in_waves(self._rollouts, self.rollout_load(policy_folder, is_final, spaces))
        self._check_fit(policy_folder, loaded[0], spaces)
        for note in loaded[0].notes:
            self._note(note)
        named = loaded[0].cameras
        return (
            match_policy_cameras(named, spaces.cameras, spaces.num_images, self._config.policy.cameras)
            if named
            else None
        )

    def rollout_load(
        self, policy_folder: str, is_final: bool, spaces: Spaces
    ) -> Callable[[RolloutWorker], PolicySpaces]:
        """Return the request to load a rollout worker. spaces: of the simulators."""
        is_base_on_device = holds_base_on_device(Workload(self._config), self._workers.plan)
        return lambda rollout: rollout.load(policy_folder, is_final, is_base_on_device, spaces)

    def _load_in_waves(self, group: WorkerGroup[W], load: Callable[[W], T]) -> list[T]:
        """Load as many workers of a node at a time as fit into its memory. Returns the values by rank."""
        plan = self._workers.plan
        each = load_bytes(self._config, policy_counts(self._config))[group.role]
        waiting = plan.of(group.role)
        num_waves = 0
        values: dict[int, T] = {}
        while waiting:
            free = {status.worker: status.host_free_bytes for status in self._workers.statuses()}
            wave = waves(waiting, each, loading_room(plan, free))[0]
            num_waves = num_waves + 1
            subject = f"{group.role} loads, wave {num_waves}: {len(wave)} of {len(waiting)}"
            loaded = group.wait([group.submit(slot.rank, load) for slot in wave], subject, self._start_s)
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
                    remedy="Set the simulator's section of env as the policy was trained with; config.yaml in "
                    "its run folder says. Or take another policy.",
                    exit_status=ExitStatus.bad_input,
                )
