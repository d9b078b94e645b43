"""What the three roles do together: load, collect, update, sync, evaluate. The same on Ray and in one process."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.colocation import Turns
from rlrun.controller.recovery import Recovery
from rlrun.controller.weight_update import WeightDelivery
from rlrun.controller.worker_group import Pending, Processes
from rlrun.data.messages import EpisodeReport, Spaces
from rlrun.data.shards import ranks_of
from rlrun.observability.memory_spread import free_memory, outlier_workers
from rlrun.placement.load_waves import load_bytes, loading_room, waves
from rlrun.placement.policy_size import count_parameters
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Batch:
    """What was collected for one training step; the shards of each actor rank are still with their makers."""

    episodes: list[EpisodeReport]
    num_control_steps: int
    num_simulator_restarts: int
    policy_version: int  # the oldest that chose an action
    shards: list[list[Pending]]  # per actor rank, of the env workers that hold its rows


@dataclass(eq=False)
class Conversation:
    """Env workers collect or evaluate, answered by rollout workers: what is asked, and what they brought so far."""

    method: str
    arguments: list[tuple]  # by env rank
    num_returns: list[int]  # by env rank
    subject: str
    on_failure: Callable[[RunError], None]  # of this round of requests
    talks: dict[int, tuple[Pending, ...]] = field(default_factory=dict)  # under way, by env rank
    parts: dict[int, tuple] = field(default_factory=dict)  # brought: the first as a value, others with their maker


class Controller:
    """Commands the workers of a run. Every wait has a subject and a deadline.

    A lost env or rollout worker is replaced, and what is missing is done again; a lost actor worker is the caller's.

    | who | waits for | unblocked by |
    |---|---|---|
    | driver | worker ready | load |
    | env | ActionChunk | rollout act |
    | rollout | Observation | env step |
    | actor | Trajectory | env collect |
    | rollout | PolicyWeights | actor publish |
    """

    def __init__(self, config: RunConfig, processes: Processes, note: Callable[[str], None] = lambda text: None):
        """note: told of what a person should know: uneven memory after loading, a worker that was replaced."""
        self._note = note
        self.config = config
        self.processes = processes
        self.recovery = Recovery(config, processes, note)
        self._turns = Turns(config, processes, self._wait)
        self._policy_folder: str | None = None  # what a new rollout worker loads
        self._is_final = False
        self._delivery = WeightDelivery(config, processes)
        self._version: int | None = None  # of the weights that rollout workers hold; None: those of the folder
        self._start_s = config.cluster.start_deadline_s
        self._step_s = config.cluster.step_deadline_s

    # --- start ------------------------------------------------------------------------------

    def load_simulators(self) -> Spaces:
        """Start the simulators; returns what a policy for them sees and does."""
        self._spaces = self._recovering(
            lambda: self.processes.ask_all("env", "load", subject="simulators start", deadline_s=self._start_s)
        )[0]
        self._tell_memory("simulators started")
        return self._spaces

    def form_mesh(self) -> None:
        """Connect the actor ranks, and let them prove it, before any model is loaded."""
        self.form_actor_mesh()
        self._form_weight_mesh()

    def form_actor_mesh(self) -> None:
        """Connect the actor ranks alone: all of them, or a new group after a loss."""
        address = self.processes.address("actor", 0)
        port = self.config.cluster.store_port
        if port is None:
            (port,) = self._wait([self.processes.submit("actor", 0, "free_port", address)], "port of the actor mesh")
        backend = self.processes.plan.training_backend.value
        self._ask_actors("join", address, port, backend, subject="actor mesh", deadline_s=self._start_s)

    def _form_weight_mesh(self) -> None:
        """With the collective transport: connect actor rank 0 and the rollout workers."""
        is_collective = self.config.weight_sync.transport is WeightTransport.collective
        if not is_collective or "rollout" not in self.processes.sizes:
            return
        address = self.processes.address("actor", 0)
        wanted = self.config.cluster.store_port
        opening = self.processes.submit("actor", 0, "open_weight_group", address, 0 if wanted is None else wanted + 1)
        (port,) = self._wait([opening], "weight mesh opened")
        backend = self.processes.plan.sync_backend.value
        joining = [self.processes.submit("actor", 0, "join_weight_group", backend)]
        joining += self._submit_all("rollout", "join_weight_group", address, port, backend)
        self.processes.wait(joining, "weight mesh", self._start_s)

    def load_actor(self, policy_folder: str) -> None:
        """Build the policy of `policy_folder` on every actor rank, and its optimizer."""
        self._turns.forget()  # these ranks may be new
        self._turns.give("actor")
        self._load_in_waves("actor", policy_folder)
        self._delivery.forget()
        self._delivery.num_buckets = self._wait([self.processes.submit("actor", 0, "num_buckets")], "bucket layout")[0]

    def load_rollout(self, policy_folder: str, is_final: bool = False) -> None:
        """Build the policy of `policy_folder` on every rollout worker.

        is_final: act with the weights in the folder (evaluation); else they follow by `sync_weights`.
        """
        self._policy_folder, self._is_final = policy_folder, is_final
        self._turns.give("rollout")
        loading = self._recovering(lambda: self._load_in_waves("rollout", policy_folder, is_final))
        num_actions, num_proprio = loading[0]
        self._check_fit(policy_folder, num_actions, num_proprio)

    def _load_in_waves(self, role: str, policy_folder: str, *arguments: object) -> list:
        """So many workers of a node at a time as its memory bears; whoever is late is named."""
        plan = self.processes.plan
        policy = dataclasses.replace(self.config.policy, path=policy_folder)
        each = load_bytes(self.config, count_parameters(policy))[role]
        waiting, num_waves = plan.of(role), 0
        answers: dict[int, Any] = {}
        while waiting:
            free = {status.worker: status.host_free_bytes for status in self.processes.statuses()}
            wave, num_waves = waves(waiting, each, loading_room(plan, free))[0], num_waves + 1
            loading = [self.processes.submit(role, slot.rank, "load", policy_folder, *arguments) for slot in wave]
            wait = self._wait if role == "actor" else self.processes.wait
            subject = f"{role} loads, wave {num_waves}: {len(wave)} of {len(waiting)}"
            answered = wait(loading, subject, self._start_s)
            answers |= zip((slot.rank for slot in wave), answered, strict=True)
            waiting = tuple(slot for slot in waiting if slot.rank not in answers)
        self._tell_memory(f"{role} loaded")
        return [answers[rank] for rank in sorted(answers)]

    def _tell_memory(self, barrier: str) -> None:
        statuses = self.processes.statuses()
        logger.info("%s: %s", barrier, free_memory(statuses))
        for worker in outlier_workers(statuses):
            self._note(f"{barrier}: {worker}")

    def _check_fit(self, policy_folder: str, num_actions: int, num_proprio: int) -> None:
        """Refuse a policy of other dimensions than the simulators have."""
        wanted = self._spaces
        for what, found, has in (
            ("action dimensions", num_actions, wanted.num_actions),
            ("proprioceptive values", num_proprio or wanted.num_proprio, wanted.num_proprio),
        ):
            if found != has:
                raise RunError(
                    f"The policy in {policy_folder} does not fit the simulator: {found} {what} against {has}.",
                    key="env",
                    value=self.config.env.simulator.name,
                    remedy="Set env (controlled, proprio, or the task) as the policy was trained with; config.yaml in "
                    "its run folder tells. Or take another policy.",
                    exit_status=ExitStatus.bad_input,
                )

    def load_to_act(self, policy_folder: str) -> None:
        """Simulators and rollout workers, all at the same time, and nothing of the actor: ready for `evaluate` with the
        policy in the folder. What loads must fit the nodes' memory together."""
        self._policy_folder, self._is_final = policy_folder, True

        def load() -> list:
            starting = self._submit_all("env", "load")
            loading = self._submit_all("rollout", "load", policy_folder, True)
            return self.processes.wait(starting + loading, "simulators start, rollout loads", self._start_s)

        answers = self._recovering(load)
        self._spaces, (num_actions, num_proprio) = answers[0], answers[-1]
        self._check_fit(policy_folder, num_actions, num_proprio)
        self._tell_memory("ready to act")

    # --- one training step ------------------------------------------------------------------

    def sync_weights(self, version: int) -> None:
        """Bring the actor's weights to every rollout worker as policy `version`."""
        self._version, self._is_final = version, False
        self._recovering(lambda: self._delivery.complete(version))

    @property
    def num_buckets(self) -> int:
        """Of weights, per policy version and rollout worker; known once the actor is loaded."""
        return self._delivery.num_buckets

    def collect(self, step: int) -> Batch:
        """Let every env worker collect one training step."""
        conversation = self.begin_collect(step)
        self.open(conversation)
        return self.collected(conversation)

    def begin_collect(self, step: int, next_version: int | None = None) -> Conversation:
        """As `collect`, but only begun: env workers reset their rows, and rollout workers answer after `open`.

        Nothing else may be asked of them until `collected`, but `sync_weights`. next_version: what that will be asked
        for; a rollout worker that is replaced meanwhile gets it, too. None: nothing.
        """
        owners = self._owners()
        num_returns = [1 + len(ranks) for ranks in owners]
        if next_version is not None:
            self._version, self._is_final = next_version, False
        subject = f"trajectories of step {step}"
        return self._begin("collect", [(step,)] * len(owners), num_returns, subject, is_held=True)

    def open(self, conversation: Conversation) -> None:
        """Let rollout workers answer what was begun."""
        if not conversation.talks:
            self._recovering(lambda: self._ask_missing(conversation))
            return
        self._turns.give("rollout")
        self.processes.open()

    def _owners(self) -> list[range]:
        """By env worker: the actor ranks that own its rows."""
        num_envs, num_ranks = self.processes.sizes["env"], self.processes.sizes["actor"]
        return [ranks_of(env, num_envs, num_ranks) for env in range(num_envs)]

    def collected(self, conversation: Conversation) -> Batch:
        """What was begun, once it is there."""
        talks = self._bring(conversation)
        reports = [parts[0] for parts in talks]
        shards: list[list[Pending]] = [[] for _ in range(self.processes.sizes["actor"])]
        for ranks, parts in zip(self._owners(), talks, strict=True):
            for actor, shard in zip(ranks, parts[1:], strict=True):
                shards[actor].append(shard)
        for rank, report in enumerate(reports):
            for fault in report.simulator_faults:
                self._note(f"env/{rank}: simulator made anew, its episodes are void: {fault}")
        return Batch(
            episodes=[episode for report in reports for episode in report.episodes],
            num_control_steps=sum(report.num_control_steps for report in reports),
            num_simulator_restarts=sum(len(report.simulator_faults) for report in reports),
            policy_version=min(report.policy_version for report in reports),
            shards=shards,
        )

    def update(self, step: int, batch: Batch, next_version: int | None = None) -> dict[str, float]:
        """Train on the batch; returns metrics, equal on all ranks.

        next_version: what `sync_weights` will then be asked for, whose first weights follow without another word; None:
        rollout workers still need those that they have.
        """
        self._turns.give("actor")
        pendings = [
            self.processes.submit("actor", rank, "update", step, *shards) for rank, shards in enumerate(batch.shards)
        ]
        if next_version is not None and self.processes.is_concurrent:
            self._delivery.begin(next_version)
        return self._wait(pendings, f"update of step {step}")[0]

    def replay(self, role: str, folder: str, step: int) -> list:
        """Let the workers of one role do a step recorded in `folder` again; returns each one's `ReplayedStep`.

        Whoever fails is not replaced: that is what a replay looks for.
        """
        subject = f"replay of step {step}"
        self._turns.give("actor" if role == "actor" else "rollout")
        return self.processes.ask_all(role, "replay", folder, step, subject=subject, deadline_s=self._step_s)

    # --- beside it --------------------------------------------------------------------------

    def evaluate(self, seeds: list[int], num_videos: int) -> list:
        """Episodes at `evaluation.temperature`, one per seed; returns each env worker's `Evaluated`."""
        num_workers = self.processes.sizes["env"]
        arguments = [(seeds[rank::num_workers], num_videos if rank == 0 else 0) for rank in range(num_workers)]
        conversation = self._begin("evaluate", arguments, [1] * num_workers, "evaluation episodes")
        return [parts[0] for parts in self._bring(conversation)]

    def save(self, root: str, driver_state: dict, is_best: bool) -> str:
        """Write a complete checkpoint under `root`, or none; returns its folder."""
        self._turns.give("actor")
        arguments = (root, driver_state, is_best)
        folder = self._ask_actors("save", *arguments, subject="checkpoint", deadline_s=self._step_s)[0]
        if self._policy_folder is not None and not self.config.actor.lora.is_sent_apart:
            self._policy_folder = f"{folder}/policy"  # the one that was loaded may be pruned
        return folder

    def restore(self, folder: str) -> dict:
        """Load a checkpoint; returns the driver's state in it."""
        self._turns.give("actor")
        return self._ask_actors("restore", folder, subject="resume", deadline_s=self._start_s)[0]

    def newest_checkpoint(self, root: str, at_most: str | None = None) -> tuple[str | None, list[str]]:
        """The newest whole checkpoint under `root`, as the actor ranks see it, and a sentence on each newer one.

        at_most: the newest to look at. Raises RunError where there are checkpoints and none of them is whole.
        """
        return self._ask_actors(
            "newest_checkpoint", root, at_most, subject="checkpoints verified", deadline_s=self._start_s
        )[0]

    def require_whole(self, checkpoint: str) -> None:
        """Raise RunError where it is damaged."""
        self._ask_actors("require_whole", checkpoint, subject="checkpoint verified", deadline_s=self._start_s)

    def export(self, folder: str) -> None:
        """Write the policy as a Hugging Face folder."""
        self._ask_actors("export", folder, subject="export", deadline_s=self._step_s)

    def record_demos(self, folder: str) -> None:
        """The expert's episodes as a dataset: every env worker records its share, the first one writes them all."""

        def record() -> None:
            parts = self.processes.ask_all("env", "record_demos", folder, subject="demos", deadline_s=self._step_s)
            written = self.processes.submit("env", 0, "write_demos", folder, parts)
            self.processes.wait([written], "dataset written", self._step_s)

        self._recovering(record)

    def begin_policy(self, folder: str) -> None:
        """Write a new policy that needs no demonstrations, for the running simulators, to `folder`."""
        self._wait([self.processes.submit("actor", 0, "begin_policy", self._spaces, folder)], "new policy")

    def imitate(self, dataset: str) -> dict[str, float]:
        """Train a new policy on demonstrations; returns the metrics of the last optimizer step."""
        self._turns.give("actor")
        metrics = self._ask_actors("imitate", dataset, subject="imitation", deadline_s=self._step_s)
        return metrics[0]

    # --- recovery ---------------------------------------------------------------------------

    def meet_rollout_workers(self) -> None:
        """Connect a new actor group, once loaded, with the rollout workers, which go on."""
        self._recovering(self._meet_rollout_workers)

    def _meet_rollout_workers(self) -> None:
        if "rollout" in self.processes.sizes:
            self._form_weight_mesh()
            discarding = self._submit_all("rollout", "discard_weights")
            self.processes.wait(discarding, "half-sent weights discarded", self._step_s)

    def _begin(
        self, method: str, arguments: list[tuple], num_returns: list[int], subject: str, is_held: bool = False
    ) -> Conversation:
        conversation = Conversation(method, arguments, num_returns, subject, self.recovery.once())
        if self.processes.is_concurrent or not is_held:  # else nothing can go on meanwhile
            self._recovering(lambda: self._ask_missing(conversation, is_held))
        return conversation

    def _ask_missing(self, conversation: Conversation, is_held: bool = False) -> None:
        if not is_held:
            self._turns.give("rollout")
        parts = conversation.parts
        missing = {rank: args for rank, args in enumerate(conversation.arguments) if rank not in parts}
        conversation.on_failure = self.recovery.once()
        num_returns = dict(enumerate(conversation.num_returns))
        conversation.talks = self.processes.converse(conversation.method, missing, num_returns, is_held)

    def _bring(self, conversation: Conversation) -> list[tuple]:
        """Every env worker's parts, by rank, the first as a value and the others still with their maker.

        What a lost worker would have brought, its successor brings; what the others brought is kept.
        """
        self._drop_lost(conversation)
        while len(conversation.parts) < len(conversation.arguments):
            self._recovering(lambda: self._take(conversation))
        return [conversation.parts[rank] for rank in range(len(conversation.arguments))]

    def _take(self, conversation: Conversation) -> None:
        """One round: what is under way, or else what is missing."""
        if not conversation.talks:
            self._ask_missing(conversation)
        talks, conversation.talks = conversation.talks, {}
        firsts = [talk[0] for talk in talks.values()]
        values = self.processes.outcomes(firsts, conversation.subject, self._step_s, conversation.on_failure)
        for (rank, talk), value in zip(talks.items(), values, strict=True):
            if not isinstance(value, RunError):
                conversation.parts[rank] = (value, *talk[1:])
        self._drop_lost(conversation)

    def _drop_lost(self, conversation: Conversation) -> None:
        """What an env worker that was replaced had brought may be gone with its node."""
        for role, rank in self.recovery.bare():
            if role == "env":
                conversation.parts.pop(rank, None)
                conversation.talks.pop(rank, None)

    def _recovering(self, operation: Callable[[], T]) -> T:
        """Do it; where an env or rollout worker is lost meanwhile, replace it and do it again."""
        while True:
            try:
                self._reload()
                return operation()
            except RunError as failure:
                self.recovery.replace(failure)

    def _reload(self) -> None:
        """Bring replaced workers to where their peers are."""
        if self._policy_folder is None:
            self._connect_without_policy()
        bare = self.recovery.bare()
        if any(role == "rollout" for role, _ in bare):
            self._delivery.forget()
            self._turns.forget()
            self._turns.give("rollout")
        arguments = {"env": (), "rollout": (self._policy_folder, self._is_final)}
        loading = [self.processes.submit(role, rank, "load", *arguments[role]) for role, rank in bare]
        self.processes.wait(loading, "replaced workers load", self._start_s)
        if any(role == "rollout" for role, _ in bare):
            self._meet_rollout_workers()
            if self._version is not None:
                self._delivery.complete(self._version)
        for role, rank in bare:
            self.recovery.loaded(role, rank)

    def _connect_without_policy(self) -> None:
        """Before any policy is loaded, rollout workers have their weight mesh and nothing else."""
        replaced = [(role, rank) for role, rank in self.recovery.bare() if role == "rollout"]
        if replaced:
            self._form_weight_mesh()
        for role, rank in replaced:
            self.recovery.loaded(role, rank)

    def _submit_all(self, role: str, method: str, *arguments: object) -> list[Pending]:
        ranks = range(self.processes.sizes[role])
        return [self.processes.submit(role, rank, method, *arguments) for rank in ranks]

    def _ask_actors(self, method: str, *arguments: object, subject: str, deadline_s: float) -> list:
        return self._wait(self._submit_all("actor", method, *arguments), subject, deadline_s)

    def _wait(self, pendings: list[Pending], subject: str, deadline_s: float | None = None) -> list:
        """The values of actor workers; an env or rollout worker lost meanwhile is replaced and does not disturb."""
        return self.processes.outcomes(pendings, subject, deadline_s or self._step_s, self.recovery.once())
