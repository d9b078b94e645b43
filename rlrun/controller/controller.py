"""Commands that involve the three roles: load, collect, update, sync, evaluate. The same on Ray and in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.controller.collection import Collection
from rlrun.controller.colocation import Colocation
from rlrun.controller.recovery import Recovery
from rlrun.controller.startup import Startup
from rlrun.controller.weight_update import WeightUpdate
from rlrun.controller.workers import ActorGroup, EpisodesRequest, Future, WorkerGroup, Workers, value_of
from rlrun.edges.reports import CollectedCheck, EpisodeReport, check_episodes, check_starts
from rlrun.edges.seeds import actor_ranks_of
from rlrun.edges.spaces import Spaces, check_equal_spaces
from rlrun.edges.starts import EpisodeStart
from rlrun.edges.trajectories import Trajectory
from rlrun.edges.world_sample import WorldSample
from rlrun.edges.wrong_message import WRONG_MESSAGE
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    import numpy as np

    from rlrun.edges.reports import Collected, Evaluated
    from rlrun.workers.env_worker import EnvWorker
    from rlrun.workers.rollout_worker import RolloutWorker

T = TypeVar("T")

_SHOWN_ROWS = 3  # void episodes of an env worker and training step that get a line each


@dataclass(frozen=True, eq=False)
class Batch:
    """The batch of one training step. The shards of each actor rank are still with the env workers."""

    reports: list[Collected]  # by env rank
    shards: list[list[Future[Trajectory]]]  # per actor rank: one per env worker that has rows of it
    num_valid: list[list[int]]  # chunk steps of each shard to learn from, as the env workers told

    @property
    def episodes(self) -> list[EpisodeReport]:
        """Return the finished episodes of all env workers."""
        return [episode for report in self.reports for episode in report.episodes]

    @property
    def num_control_steps(self) -> int:
        return sum(report.num_control_steps for report in self.reports)

    @property
    def num_simulator_restarts(self) -> int:
        return sum(len(report.simulator_faults) for report in self.reports)

    @property
    def policy_version(self) -> int:
        """Return the oldest version that chose an action."""
        return min(report.policy_version for report in self.reports)


class Controller:
    """Commands the workers of a run. Every wait has a subject and a deadline.

    A lost env or rollout worker is replaced, and its work is repeated. The caller handles the loss of an actor worker.

    | worker | waits for | which ends with |
    |---|---|---|
    | driver | worker ready | load |
    | env | ActionChunk | rollout act |
    | rollout | Observation | env step |
    | rollout | the policy version that an Observation needs | weight sync |
    | actor | Trajectory | env collect |
    | rollout | PolicyWeights | actor pack or broadcast |
    """

    def __init__(self, config: RunConfig, workers: Workers, note: Callable[[str], None] = lambda text: None):
        """note: called with sentences for the user, on uneven memory after loading and on replaced workers."""
        self._note = note
        self._meaning_of_success = simulator_spec(config.env).evaluation.meaning_of_success(config.env)
        self.config = config
        self.workers = workers
        self.recovery = Recovery(config, workers, note)
        self.envs: WorkerGroup[EnvWorker] = WorkerGroup(workers, "env")
        self.rollouts: WorkerGroup[RolloutWorker] = WorkerGroup(workers, "rollout")
        self.actors = ActorGroup(workers, self.recovery.once)
        self._startup = Startup(config, workers, self.actors, self.rollouts, note)
        rule = rollout_rule(config.algorithm)
        self._check_collected = CollectedCheck(config, rule.group_size, rule.one_episode)
        self._colocation = Colocation(config, self.actors, self.rollouts)
        self._weights = WeightUpdate(config, workers, self.actors, self.rollouts, note)
        # by env worker: the actor ranks that own its rows
        self._owners = [actor_ranks_of(env, len(self.envs), len(self.actors)) for env in range(len(self.envs))]
        self._policy_folder: str | None = None  # the folder that a new rollout worker loads
        self._world: Spaces | None = None  # spaces of the simulators, with all of their cameras
        self.shown: tuple[int, ...] | None = None  # cameras that the policy takes; None: all, in their order
        self._is_final = False  # whether rollout workers act with the weights of that folder
        self._version: int | None = None  # else the version for a new rollout worker; None: none was sent yet
        self._start_s = config.cluster.start_deadline_s
        self._step_s = config.cluster.step_deadline_s

    def configure(self, config: RunConfig) -> None:
        """Take another configuration for the rest of the run; workers that are replaced from now on start with it."""
        self.config = config
        self._startup.configure(config)
        self.workers.configure(config)

    # --- start ------------------------------------------------------------------------------

    def load_simulators(self) -> Spaces:
        """Start the simulators. Returns the spaces of their observations and actions."""
        spaces = self._recovering(lambda: self.envs.call(lambda env: env.load(), "simulators start", self._start_s))
        check_equal_spaces(dict(enumerate(spaces)))
        self._world = spaces[0]
        self.shown = None
        if self.world.observed:
            self._note(f"observation: {self.world.observed}")
        if meaning := self._meaning_of_success:
            self._note(f"success: {meaning}")
        self._startup.report_memory("simulators started")
        return self.world

    @property
    def world(self) -> Spaces:
        """Return the spaces of the simulators, with all of their cameras."""
        if self._world is None:
            raise RuntimeError("load_simulators() comes first")
        return self._world

    def fingerprints(self) -> list[dict[str, str]]:
        """Return what makes the simulator of each env worker what it is."""
        what = "fingerprints of the simulators"
        return self._recovering(lambda: self.envs.call(lambda env: env.fingerprint(), what, self._step_s))

    def probe(self, seeds: list[int]) -> list[EpisodeStart]:
        """Return how episodes with these reset seeds begin, in the simulator of the first env worker."""
        what = "starts of known seeds"
        return self._recovering(lambda: self.envs.call_first(lambda env: env.probe(seeds), what, self._step_s))

    def sample_world(self, seeds: list[int], actions: np.ndarray) -> WorldSample:
        """Return what the simulator of the first env worker shows at these starts, and its answers to the actions."""
        what = "answers to actions of the data set"
        return self._recovering(
            lambda: self.envs.call_first(lambda env: env.sample(seeds, actions), what, self._step_s)
        )

    def form_mesh(self) -> None:
        """Connect the actor ranks, and verify the connections, before any model is loaded."""
        self._startup.form_actor_mesh()
        self._startup.form_weight_mesh()

    def load_actor(self, policy_folder: str) -> None:
        """Build the policy of `policy_folder` on every actor rank, and its optimizer."""
        self._colocation.forget()  # the ranks may be new processes
        self._colocation.onload("actor")
        self._weights.forget()
        self._weights.bucket_counts = self._startup.load_actor(policy_folder)

    def load_rollout(self, policy_folder: str, is_final: bool = False) -> None:
        """Build the policy of `policy_folder` on every rollout worker.

        is_final: act with the weights of the folder, as version 0 (evaluation); else `sync_weights` sends weights.
        """
        self._policy_folder = policy_folder
        self._is_final = is_final
        self._colocation.onload("rollout")
        cameras = self._recovering(lambda: self._startup.load_rollout(policy_folder, is_final, self.world))
        if cameras is None or cameras.order == self.shown:
            return
        if cameras.differs:
            self._note(f"cameras: {cameras}")
        if self.shown is not None or cameras.order != tuple(range(len(cameras.there))):
            self.show(cameras.order)

    def show(self, cameras: tuple[int, ...]) -> None:
        """Let the simulators show these of their cameras, in this order: those that the policy takes."""
        self.shown = cameras
        self._recovering(lambda: self.envs.call(lambda env: env.show(cameras), "cameras chosen", self._step_s))

    # --- one training step ------------------------------------------------------------------

    def sync_weights(self, version: int) -> None:
        """Send the actor's weights to every rollout worker as policy `version`, unless they hold that version."""
        self._version = version
        self._is_final = False
        self._recovering(lambda: self._send_weights(version))

    def _send_weights(self, version: int) -> None:
        """Send a version; where roles take turns, the actor packs it, and the rollout workers come with it.

        Raises RunError if a rollout worker is lost meanwhile.
        """
        if self._weights.held != version:
            self._colocation.onload("actor", self.rollouts)
            self._weights.send(version)
        try:
            self._colocation.onload("rollout", self.rollouts)
        except RunError as failure:
            if failure.kind != WRONG_MESSAGE:
                raise
            self._colocation.onload("actor", self.rollouts)
            self._weights.send_again(version, failure)
            self._colocation.onload("rollout", self.rollouts)

    @property
    def held_version(self) -> int | None:
        """Return the policy version that `sync_weights` sent last; None: unknown, or weights of the policy folder."""
        return self._weights.held

    @property
    def num_buckets(self) -> int:
        """Return the number of buckets of the next version, per rollout worker; known once the actor is loaded."""
        return self._weights.num_buckets

    def collect(self, step: int, policy_version: int) -> Batch:
        """Let every env worker collect one training step with `policy_version`, which is sent at the same time."""
        collection = self.start_collection(step, policy_version)
        self.sync_weights(policy_version)
        return self.finish_collection(collection)

    def start_collection(self, step: int, policy_version: int) -> Collection:
        """Start to collect: env workers reset their rows and send observations.

        Rollout workers answer once they hold `policy_version`, see `sync_weights`. Until `finish_collection`, the
        workers accept no other requests than weights.
        """
        if self._weights.held == policy_version:  # else rollout workers come with their weights
            self._colocation.onload("rollout")
        self._version = policy_version
        self._is_final = False
        num_returns = [1 + len(ranks) for ranks in self._owners]
        return self._started(
            [lambda env: env.collect(step, policy_version)] * len(self.envs),
            num_returns,
            f"trajectories of step {step}",
            lambda rank, report: self._check_collected(rank, step, report),
        )

    def finish_collection(self, collection: Collection) -> Batch:
        """Wait for the end of a collection. Returns its batch."""
        results = self._finished(collection)
        reports = [values[0] for values in results]
        shards: list[list[Future[Trajectory]]] = [[] for _ in range(len(self.actors))]
        num_valid: list[list[int]] = [[] for _ in range(len(self.actors))]
        for ranks, (report, *own) in zip(self._owners, results, strict=True):
            for actor, shard, count in zip(ranks, own, report.num_valid, strict=True):
                shards[actor].append(shard)
                num_valid[actor].append(count)
        for rank, report in enumerate(reports):
            for fault in report.simulator_faults:
                self._note(f"env/{rank}: simulator restarted, its episodes are void: {fault}")
            for fault in report.row_faults[:_SHOWN_ROWS]:
                self._note(f"env/{rank}: an episode is void: {fault}")
            if more := len(report.row_faults[_SHOWN_ROWS:]):
                self._note(f"env/{rank}: {more} more episodes are void; logs/env-{rank}.log has the reasons")
        return Batch(reports, shards, num_valid)

    def update(self, step: int, batch: Batch) -> dict[str, float]:
        """Train on the batch. Returns metrics, which are equal on all ranks."""
        self._colocation.onload("actor")
        updating = [
            self.actors.submit(rank, lambda actor: actor.update(step, counts, *map(value_of, own)))  # noqa: B023  (called at once)
            for rank, (own, counts) in enumerate(zip(batch.shards, batch.num_valid, strict=True))
        ]
        return self.actors.wait(updating, f"update of step {step}", self._step_s)[0]

    # --- beside it --------------------------------------------------------------------------

    def evaluate(self, seeds: list[int], num_videos: int, policy_version: int = 0) -> list[Evaluated]:
        """Run one episode per seed at `evaluation.temperature`, with `policy_version`, which rollout workers hold."""
        num_workers = len(self.envs)

        def share(rank: int) -> EpisodesRequest:
            own = seeds[rank::num_workers]
            num_own_videos = num_videos if rank == 0 else 0
            return lambda env: env.evaluate(own, num_own_videos, policy_version)

        self._colocation.onload("rollout")
        requests = [share(rank) for rank in range(num_workers)]
        collection = self._started(
            requests,
            [1] * num_workers,
            "evaluation episodes",
            lambda rank, report: self._check_evaluated(rank, report, seeds[rank::num_workers]),
        )
        return [values[0] for values in self._finished(collection)]

    def save(self, root: str, driver_state: dict[str, Any], is_best: bool) -> str:
        """Write a complete checkpoint under `root`, or none. Returns its folder."""
        self._colocation.onload("actor")
        folder = self.actors.call(lambda actor: actor.save(root, driver_state, is_best), "checkpoint", self._step_s)[0]
        self._reload_from(folder)
        return folder

    def begin_save(self, root: str, driver_state: dict[str, Any], is_best: bool) -> str:
        """Copy the actor's state, and begin to write a checkpoint of it under `root`. Returns its folder.

        `finish_save` comes before the next checkpoint.
        """
        self._colocation.onload("actor")
        what = "copies for a checkpoint"
        return self.actors.call(lambda actor: actor.begin_save(root, driver_state, is_best), what, self._step_s)[0]

    def is_saved(self) -> bool:
        """Return whether `finish_save` would not wait."""
        return self.actors.call_first(lambda actor: actor.is_saved(), "status of the checkpoint", self._step_s)

    def finish_save(self, folder: str) -> None:
        """Wait until the checkpoint of `begin_save` is complete. Raises RunError if it could not be written."""
        self.actors.call(lambda actor: actor.finish_save(folder), "checkpoint", self._step_s)
        self._reload_from(folder)

    def try_disk(self, folder: str, num_bytes: int) -> float:
        """Return the seconds that the writer of checkpoints takes to flush a file of `num_bytes` in a folder."""
        what = "trial of the disk"
        return self.actors.call_first(lambda actor: actor.try_disk(folder, num_bytes), what, self._step_s)

    def _reload_from(self, folder: str) -> None:
        if self._policy_folder is not None:
            self._policy_folder = f"{folder}/policy"  # the folder that was loaded may be pruned

    def restore(self, folder: str) -> dict[str, Any]:
        """Load a checkpoint. Returns the driver's state in it."""
        self._colocation.onload("actor")
        self._weights.forget()
        return self.actors.call(lambda actor: actor.restore(folder), "resume", self._start_s)[0]

    def latest_checkpoint(self, root: str, at_most: str | None = None) -> tuple[str | None, list[str]]:
        """Return the latest valid checkpoint under `root`, as the actor ranks see it, and a sentence on each newer one.

        at_most: the newest to consider. Raises RunError if there are checkpoints but none is valid.
        """
        what = "checkpoints verified"
        return self.actors.call(lambda actor: actor.latest_checkpoint(root, at_most), what, self._start_s)[0]

    def verify_checkpoint(self, checkpoint: str) -> None:
        """Raise RunError if the checkpoint is damaged."""
        self.actors.call(lambda actor: actor.verify_checkpoint(checkpoint), "checkpoint verified", self._start_s)

    def export(self, folder: str) -> None:
        """Write the policy as a Hugging Face folder."""
        self._colocation.onload("actor")
        self.actors.call(lambda actor: actor.export(folder), "export", self._step_s)

    def record_demos(self, folder: str) -> None:
        """Write the expert's episodes as a dataset: every env worker records a share, and the first one writes all."""

        def record() -> None:
            parts = self.envs.call(lambda env: env.record_demos(folder), "demos", self._step_s)
            self.envs.call_first(lambda env: env.write_demos(folder, parts), "dataset written", self._step_s)

        self._recovering(record)

    def begin_policy(self, folder: str) -> None:
        """Write a new policy that needs no demonstrations, for the running simulators, to `folder`."""
        self.actors.call_first(lambda actor: actor.begin_policy(self.world, folder), "new policy", self._step_s)

    def imitate(self, dataset: str, cameras: tuple[str, ...]) -> dict[str, float]:
        """Train a new policy on demonstrations. Returns the metrics of the last optimizer step.

        cameras: of the dataset, in the order of those of the world that they stand for.
        """
        self._colocation.onload("actor")
        world = self.world
        return self.actors.call(lambda actor: actor.imitate(dataset, cameras, world), "imitation", self._step_s)[0]

    def take_demonstrations(self, dataset: str, cameras: tuple[str, ...]) -> int:
        """Let the loaded actor ranks learn from demonstrations, too. Returns the number of their chunk steps.

        cameras: of the dataset, in the order of those of the world that they stand for.
        """
        taken = cameras if self.shown is None else tuple(cameras[i] for i in self.shown)
        what = "demonstrations read"
        return self.actors.call(lambda actor: actor.take_demonstrations(dataset, taken), what, self._start_s)[0]

    # --- recovery ---------------------------------------------------------------------------

    def form_actor_mesh(self) -> None:
        """Connect the actor ranks of a new group, after a loss."""
        self._startup.form_actor_mesh()

    def join_rollout_workers(self) -> None:
        """Connect a new, loaded actor group with the rollout workers, which were not replaced."""
        self._recovering(self._join_rollout_workers)

    def _join_rollout_workers(self) -> None:
        if len(self.rollouts):
            self._startup.form_weight_mesh()
            what = "half-sent weights discarded"
            self.rollouts.call(lambda rollout: rollout.discard_weights(), what, self._step_s)

    def _envs_of(self, rank: int) -> range:
        """Return the global indices of the rows of an env worker."""
        num_envs = self.config.env.num_envs // len(self.envs)
        return range(rank * num_envs, (rank + 1) * num_envs)

    def _check_evaluated(self, rank: int, report: Evaluated, seeds: list[int]) -> None:
        """Raise RunError, naming the env worker, if its report of an evaluation of `seeds` cannot be right."""
        check_episodes(f"env/{rank}", report.episodes, self._envs_of(rank), seeds, report.left_out)
        check_starts(f"env/{rank}", report.starts, seeds)

    def _started(
        self,
        requests: Sequence[EpisodesRequest],
        num_returns: Sequence[int],
        subject: str,
        check: Callable[[int, Any], None],
    ) -> Collection:
        collection = Collection(self.workers, self.recovery, requests, num_returns, subject, check)
        self._recovering(collection.start)
        return collection

    def _finished(self, collection: Collection) -> list[tuple[Any, ...]]:
        """Wait for a collection, and return the results by env worker; a replaced worker repeats its share."""
        collection.drop_lost()
        while not collection.is_complete:
            self._recovering(lambda: collection.wait(self._step_s))
        return collection.results()

    def _recovering(self, operation: Callable[[], T]) -> T:
        """Run `operation`. If an env or rollout worker is lost meanwhile, replace it and run `operation` again."""
        while True:
            try:
                self._reload()
                return operation()
            except RunError as failure:
                self.recovery.replace(failure)

    def _reload(self) -> None:
        """Load replaced workers as their peers are loaded."""
        not_loaded = replaced = self.recovery.not_loaded()
        is_rollout_lost = any(role == "rollout" for role, _ in replaced)
        if self._policy_folder is None:
            if is_rollout_lost:
                self._startup.form_weight_mesh()  # before a policy is loaded, rollout workers have nothing else
            not_loaded = [(role, rank) for role, rank in replaced if role == "env"]
        elif is_rollout_lost:
            self._weights.forget()
            self._colocation.forget()
            self._colocation.onload("rollout")
        loading = [self._loading(role, rank) for role, rank in not_loaded]
        loaded = self.workers.wait(loading, "replaced workers load", self._start_s)
        found = {rank: value for (role, rank), value in zip(not_loaded, loaded, strict=True) if role == "env"}
        check_equal_spaces(found, self._world)
        if is_rollout_lost and self._policy_folder is not None:
            self._join_rollout_workers()
            if self._version is not None:
                self._send_weights(self._version)
        for role, rank in replaced:
            self.recovery.loaded(role, rank)

    def _loading(self, role: str, rank: int) -> Future[Any]:
        if role == "env":
            shown = self.shown
            return self.envs.submit(rank, lambda env: env.load(shown))
        folder = self._policy_folder
        is_final = self._is_final
        assert folder is not None
        return self.rollouts.submit(rank, self._startup.rollout_load(folder, is_final, self.world))
