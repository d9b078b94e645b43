"""The actor worker: one FSDP rank that trains the policy and publishes its weights."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rlrun.actor import checkpoint, process_group
from rlrun.actor.checkpoint_search import CheckpointSearch
from rlrun.actor.checkpoint_writing import BackgroundSave, CheckpointWriting, policy_export, snapshot
from rlrun.actor.imitation import DemonstrationSource, exchanged_losses, imitate, num_demonstrated_steps
from rlrun.actor.learner import Learner
from rlrun.actor.sharding import form_mesh
from rlrun.actor.updates import update
from rlrun.algorithms.algorithm import OffPolicyAlgorithm
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.data import checkpoint_folder, checksums
from rlrun.data.lerobot.reader import open_dataset
from rlrun.edges.outgoing_weights import OutgoingWeights
from rlrun.edges.spaces import Spaces
from rlrun.edges.trajectories import Trajectory, TrajectoryCheck, concatenate
from rlrun.edges.weights import DeviceHandles, SentBucket
from rlrun.observability.disk_speed import flush_seconds
from rlrun.observability.timeline import profiled
from rlrun.policies.offloading import await_room
from rlrun.policies.opening import open_to_shard
from rlrun.policies.policy import Policy
from rlrun.policies.spec import DemonstratedTask, policy_spec, require_observations
from rlrun.policies.weight_files import StoredWeights
from rlrun.system.errors import OUT_OF_MEMORY, ExitStatus, RunError
from rlrun.system.network import free_port
from rlrun.system.telemetry import Telemetry
from rlrun.workers.demonstrations import (
    Demonstrations,
    ablation_batch,
    demonstrated_steps,
    imitation_batches,
    require_shown,
)


class ActorWorker:
    """One actor rank: loads a policy folder, learns from trajectories, saves and restores checkpoints."""

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry):
        self.config = config
        self.rank = rank
        self.telemetry = telemetry
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._learner: Learner | None = None
        self._check = TrajectoryCheck(config, rank)
        self._mesh: DeviceMesh | None = None
        self._writers: process_group.Ranks | None = None  # all ranks once more, for checkpoints in the background
        self._saving: BackgroundSave | None = None
        self.outgoing = OutgoingWeights(config, rank, telemetry)
        self._demonstrations: DemonstrationSource | None = None  # imitated beside reinforcement learning

    # --- start ------------------------------------------------------------------------------

    def free_port(self, address: str) -> int:
        """Return a port of `address` that is free now, for the rendezvous of the actor ranks."""
        return free_port(address)

    def join(self, address: str, port: int, planned: str) -> None:
        """Form the process group of all actor ranks and the mesh of their shards, and verify both with collectives.

        planned: "gloo" or "nccl".
        """
        backend = process_group.torch_backend(planned, self.device)
        timeout_s = self.config.cluster.start_deadline_s
        with self.telemetry.span("form mesh"):
            process_group.join(self.rank, self.config.actor.num_workers, address, port, backend, timeout_s)
            self._mesh = form_mesh(self.config.actor, process_group.Ranks(self.device), self.device, timeout_s)
            if self.config.checkpoint.is_asynchronous:
                beside = process_group.new_gloo_group(self.config.cluster.step_deadline_s)
                self._writers = process_group.Ranks(torch.device("cpu"), beside)

    def open_weight_group(self, address: str, port: int) -> int:
        """See `OutgoingWeights.open_group`."""
        return self.outgoing.open_group(address, port)

    def join_weight_group(self, planned: str) -> None:
        """See `OutgoingWeights.join_group`."""
        self.outgoing.join_group(planned)

    def open_device_memory(self, *handles: DeviceHandles) -> str:
        """See `OutgoingWeights.open_device_memory`."""
        return self.outgoing.open_device_memory(*handles)

    def load(self, policy_folder: str, room_bytes: int = 0) -> None:
        """Build policy, shards and optimizer from a policy folder. room_bytes: what a new process first waits for."""
        with self.telemetry.span("load"):
            if self._learner is None:
                limit_s = self.config.cluster.start_deadline_s
                await_room(self.device, room_bytes, limit_s, partial(self.telemetry.count, "looks"))
            policy, weights = open_to_shard(policy_folder, self.config)
            weights.progress = partial(self.telemetry.count, "tensors_read")
            self._begin(policy, weights)
            self.outgoing.load(self.learner.weight_layout, self.learner.named_weights)

    def begin_policy(self, spaces: Spaces, folder: str) -> None:
        """Write a new policy that needs no demonstrations to `folder`; called on one rank."""
        spec = policy_spec(self.config)
        require_observations(spec, spaces)
        assert spec.from_scratch is not None, f"{spec.name} begins with demonstrations"
        policy: Policy = POLICIES.part(spec, "from_scratch")(self.config, spaces)
        policy.save(Path(folder))
        checksums.write(Path(folder))

    def imitate(self, dataset: str, cameras: tuple[str, ...], world: Spaces) -> dict[str, float]:
        """Train a new policy on demonstrations.

        cameras: of the dataset, in the order of those of the world that they stand for. world: in which the policy will
        act. Returns the metrics of the last optimizer step that was finite; num_nonfinite is the number of those that
        were not. Raises RunError if none was, and for a dataset that cannot be used.
        """
        torch.set_num_threads(self.config.actor.num_threads)
        with self.telemetry.span("imitate"):
            demos = open_dataset(self.config.demos, dataset, cameras)
            spec = policy_spec(self.config)
            require_shown(self.config, spec, demos, dataset)
            sizes = demos.features.num_actions, demos.features.num_proprio
            task = DemonstratedTask(*sizes, demos.norm_stats(), demos.sentences, world.cameras or cameras)
            assert spec.from_demonstrations is not None, f"{spec.name} begins from scratch"
            self._begin(POLICIES.part(spec, "from_demonstrations")(self.config, task))
            num_steps = num_demonstrated_steps(self.learner)
            metrics = imitate(self.learner, imitation_batches(self.config, demos, dataset, self.rank, num_steps))
            return metrics | exchanged_losses(self.learner, ablation_batch(demos, dataset, num_steps))

    def take_demonstrations(self, dataset: str, cameras: tuple[str, ...]) -> int:
        """Open the demonstrations that reinforcement learning uses; returns the number of their chunk steps.

        An off-policy algorithm learns from them; beside others they are imitated. cameras: of the dataset, in the order
        of those that the policy takes. Raises RunError for a dataset that cannot be used.
        """
        with self.telemetry.span("take demonstrations"):
            demos = open_dataset(self.config.demos, dataset, cameras)
            algorithm = self.learner.algorithm
            if isinstance(algorithm, OffPolicyAlgorithm):
                shown = demonstrated_steps(self.config, demos, dataset)
                algorithm.take_demonstrations(shown, self.learner.policy)
                return len(shown.proprio)
            require_shown(self.config, policy_spec(self.config), demos, dataset)
            num_steps = num_demonstrated_steps(self.learner)
            self._demonstrations = Demonstrations(self.config, demos, dataset, self.rank, num_steps).beside_update
            return len(demos)

    def _begin(self, policy: Policy, weights: StoredWeights | None = None) -> None:
        """Make shards and optimizers for a policy that every rank holds in full, or that `weights` fill."""
        num_ranks = self.config.actor.num_workers
        device = self.device
        self._learner = Learner(self.config, policy, self.rank, num_ranks, device, self.telemetry, self._mesh, weights)

    @property
    def learner(self) -> Learner:
        """Return the loaded learner."""
        if self._learner is None:
            raise RuntimeError("load() comes first")
        return self._learner

    # --- training ---------------------------------------------------------------------------

    def update(self, step: int, num_valid: Sequence[int] | None, *shards: Trajectory) -> dict[str, float]:
        """Train on this rank's shards of one step and return metrics, which are means over all ranks.

        step: the training step, which is also the version of the present policy. num_valid: see `TrajectoryCheck`.
        Raises RunError, on all ranks and before anything changes, if a shard of any rank cannot be right.
        """
        torch.set_num_threads(self.config.actor.num_threads)  # a rollout worker in this process may have changed it
        profile = profiled(Path(self.config.output_dir or "."), self.config.logging, step, self.telemetry.worker)
        self.telemetry.step = step + 1
        with self.telemetry.span("update"), profile:
            self._require_right(shards, step, num_valid)
            try:
                return update(self.learner, concatenate(list(shards)), step, self._demonstrations)
            except torch.OutOfMemoryError as error:
                raise self._out_of_memory(error) from error

    def _out_of_memory(self, error: torch.OutOfMemoryError) -> RunError:
        return RunError(
            f"{self.telemetry.worker} ran out of device memory in an update.",
            key="actor.micro_batch_size",
            value=self.config.actor.micro_batch_size,
            cause=str(error).splitlines()[0],
            remedy="Lower it, set actor.activation_checkpointing=true, or use more actor ranks.",
            exit_status=ExitStatus.placement,
            worker=self.telemetry.worker,
            kind=OUT_OF_MEMORY,
        )

    def _require_right(self, shards: Sequence[Trajectory], step: int, num_valid: Sequence[int] | None) -> None:
        """Raise the first refusal of any rank, on all ranks: the others would wait in a collective."""
        refusal: RunError | None = None
        try:
            self._check(shards, step, self.learner.policy.decode_actions, num_valid)
        except RunError as error:
            refusal = error
        for other in self.learner.ranks.gather(refusal):
            if other is not None:
                raise other

    # --- weights ----------------------------------------------------------------------------

    def num_buckets(self) -> tuple[int, int]:
        """See `OutgoingWeights.num_buckets`."""
        return self.outgoing.num_buckets()

    def largest_bucket(self) -> int:
        """See `OutgoingWeights.largest_bucket`."""
        return self.outgoing.largest_bucket()

    def pack(self, policy_version: int, index: int, has_base: bool, is_shared: bool | None) -> SentBucket | None:
        """See `OutgoingWeights.pack`."""
        return self.outgoing.pack(policy_version, index, has_base, is_shared)

    def broadcast(self, policy_version: int, has_base: bool) -> None:
        """See `OutgoingWeights.broadcast`."""
        self.outgoing.broadcast(policy_version, has_base)

    # --- offload ------------------------------------------------------------------------------

    def offload(self) -> None:
        """Move to host memory, so that rollout workers can use the accelerator. Does nothing before `load`."""
        if self._learner is not None:
            with self.telemetry.span("offload"):
                self._learner.offload()

    def onload(self) -> None:
        """Move back to the accelerator."""
        if self._learner is not None:
            with self.telemetry.span("onload"):
                self._learner.onload()

    # --- checkpoints ------------------------------------------------------------------------

    def save(self, root: str, driver_state: dict, is_best: bool) -> str:
        """Write the checkpoint of the driver's step under `root`, or none; then prune old ones. Returns its folder."""
        folder = checkpoint_folder.folder_of_step(Path(root), driver_state["step"])
        with self.telemetry.span("save"):
            self._unmark(folder)
            progress = partial(self.telemetry.count, "checksummed_pieces")
            CheckpointWriting(snapshot(self.learner, driver_state), folder, self.learner.ranks, progress).complete()
            if is_best and self.rank == 0:
                checkpoint_folder.mark_best(folder)
            self._prune(folder)
        return str(folder)

    def begin_save(self, root: str, driver_state: dict, is_best: bool) -> str:
        """Copy the state to host memory, and let a thread write the checkpoint. Returns its folder.

        All ranks call it, and `finish_save` before they save again.
        """
        assert self._writers is not None, "checkpoint.is_asynchronous is false"
        folder = checkpoint_folder.folder_of_step(Path(root), driver_state["step"])
        with self.telemetry.span("save"):
            self._unmark(folder)
            state = snapshot(self.learner, driver_state).in_host_memory()
        writing = CheckpointWriting(state, folder, self._writers, self._count_in_background)

        def write() -> None:
            writing.complete()
            if is_best and self.rank == 0:
                checkpoint_folder.mark_best(folder)

        self._saving = BackgroundSave(write)
        return str(folder)

    def _unmark(self, folder: Path) -> None:
        """Before another checkpoint takes the place of the one in `folder`: that was the best one, not this."""
        if self.rank == 0:
            checkpoint_folder.unmark_best(folder)

    def _count_in_background(self) -> None:
        # while training goes on, a piece of a checkpoint proves no progress of the training
        self.telemetry.count("checksummed_pieces", is_progress=self.telemetry.phase == "save")

    def is_saved(self) -> bool:
        """Return whether the write of `begin_save` has ended, well or not."""
        return self._saving is not None and self._saving.is_done

    def finish_save(self, folder: str) -> None:
        """Wait until the checkpoint of `begin_save` is written; then prune old ones. Raises RunError if it is not."""
        saving = self._saving
        self._saving = None
        assert saving is not None, "begin_save() comes first"
        with self.telemetry.span("save"):
            saving.wait(self.config.cluster.step_deadline_s)
            self._prune(Path(folder))

    def try_disk(self, folder: str, num_bytes: int) -> float:
        """Return the seconds in which this process writes and flushes a file of `num_bytes`; rank 0."""
        with self.telemetry.span("try disk"):
            return flush_seconds(Path(folder), num_bytes)

    def _prune(self, newest: Path) -> None:
        if self.rank == 0:
            checkpoint_folder.prune(newest, self.config.checkpoint.keep_last, self.config.checkpoint.is_best_kept)

    def latest_checkpoint(self, root: str, at_most: str | None) -> tuple[str | None, list[str]]:
        """See `CheckpointSearch.latest_valid`; all ranks call it."""
        with self.telemetry.span("verify checkpoints"):
            found, skipped = self._search().latest_valid(Path(root), Path(at_most) if at_most else None)
        return str(found) if found else None, skipped

    def verify_checkpoint(self, folder: str) -> None:
        """Raise RunError if a checkpoint is damaged; all ranks call it."""
        with self.telemetry.span("verify checkpoints"):
            self._search().verify(Path(folder))

    def _search(self) -> CheckpointSearch:
        ranks = process_group.Ranks(self.device)
        progress = partial(self.telemetry.count, "verified_pieces")
        return CheckpointSearch(ranks, self.config.checkpoint.verify, progress)

    def restore(self, folder: str) -> dict:
        """Load a checkpoint. Returns the driver's state in it."""
        with self.telemetry.span("restore"):
            return checkpoint.restore(self.learner, Path(folder))

    def export(self, folder: str) -> None:
        """Write the policy as a Hugging Face folder, complete or not at all. All ranks gather; rank 0 writes."""
        place = Path(folder)
        draft = place.with_name(f".{place.name}.draft")
        with self.telemetry.span("export"):
            policy_export(self.learner).write(draft, lambda: self.telemetry.count("checksummed_pieces"))
            if self.rank == 0:
                shutil.rmtree(place, ignore_errors=True)
                checksums.rename_durably(draft, place)

    def close(self) -> None:
        """Leave the process group and free the policy."""
        self._learner = None
        self.outgoing.close()
        process_group.leave()
