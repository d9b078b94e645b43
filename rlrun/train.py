"""Train a policy: warm start, then sync, collect and update until the steps are done."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.data import checkpoint_folder
from rlrun.observability.disk_speed import folder_bytes
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.training.progress import Progress
from rlrun.training.replay import begin_recording, replay

if TYPE_CHECKING:
    from rlrun.controller.controller import Batch, Conversation
    from rlrun.data.messages import EpisodeReport, WorkerLoss
    from rlrun.training.session import Stopwatch

CHECKPOINTS = "checkpoints"
_COPIES = 4.0  # of a policy in a checkpoint: itself twice, and two moments of the optimizer


class CutShort(Exception):
    """A signal came while a policy was evaluated, which may take longer than a scheduler waits."""


def train(config: RunConfig) -> ExitStatus:
    """One run, from wherever its folder says it got to."""
    from rlrun.training.session import Session

    return Training.run_in(Session(config, is_patient=True))


class Training:
    """The synchronous loop: each step learns only from what the newest policy did."""

    @classmethod
    def run_in(cls, session) -> ExitStatus:
        """A whole run. session: not entered yet."""
        from rlrun import head_start

        at_hand = head_start.policy_to_act_with(session)
        session.later = head_start.LATER if at_hand is not None else ()
        with session:
            return cls(session, at_hand).run()

    def __init__(self, session, at_hand: Path | None = None):
        """at_hand: the first policy, with which env and rollout workers can act before the actor is there."""
        self.session = session
        self.at_hand = at_hand.absolute() if at_hand is not None else None  # checkpoints keep it
        self.config: RunConfig = session.config
        self.controller = session.controller
        self.progress = Progress()
        self.is_best = False  # whether the last evaluation since the last checkpoint was the best so far
        self.checkpoint: Path | None = None  # the one to go back to; None: none yet, back to `first_policy`
        self.first_policy = ""
        self.saved_step = -1
        self.is_updating = False  # the actor's state is between two steps
        self.is_actor_loaded = at_hand is None  # before the first step
        self.is_synced = True  # rollout workers have the newest weights
        self.sync_s = 0.0  # of this step, spent in waiting for that
        self.evaluate_s = self.save_s = 0.0  # since the last step, spent between two steps
        self.untold: Callable[[], None] | None = None  # tells of the last step, while the next one is collected

    def run(self) -> ExitStatus:
        """Start or resume, loop, evaluate, report. A lost actor worker sends the loop back to the last checkpoint."""
        try:
            with self.session.stop.at_once():
                self.begin()
        except KeyboardInterrupt:
            return self.leave_unsaved()
        while True:
            try:
                return self.loop()
            except RunError as failure:
                self.tell_last()
                if not _is_actors(failure):
                    self.session.console.warning(failure.message.splitlines()[0])  # saving may take a while
                    if failure.exit_status is not ExitStatus.storage:
                        self.rescue()
                    raise
                self.rewind(failure)

    def loop(self) -> ExitStatus:
        """Steps until they are done, time is over, or a signal came."""
        try:
            return self.steps()
        except CutShort:
            return self.leave()

    def steps(self) -> ExitStatus:
        """The same; raises CutShort where a signal came while the policy was evaluated."""
        if self.progress.step == 0 and self.progress.first_success_rate < 0:
            self.progress.first_success_rate = self.evaluate(is_filmed=True)
        if not self.is_actor_loaded:
            self.load_actor_late()
        while self.progress.step < self.config.num_steps and not self.is_time_over():
            if self.session.stop.is_requested:
                return self.leave()
            if self.progress.is_evaluation_owed:
                self.evaluate(is_filmed=self.is_due(self.config.logging.video_every_steps))
            begin_recording(self.session, asdict(self.progress))
            self.step()
            self.keep()
        self.tell_last()
        return self.finish()

    def rewind(self, failure: RunError) -> None:
        """An actor worker was lost: its whole group starts again from the last checkpoint. Raises what is final."""
        self.is_updating = True
        with self.session.phase("restart actors"):
            while True:
                self.controller.recovery.replace_actors(failure)
                try:
                    self.controller.form_actor_mesh()
                    self.go_back()
                    self.controller.meet_rollout_workers()
                    self.sync()
                    self.is_actor_loaded = True
                    break
                except RunError as another:  # one more was lost meanwhile
                    if not _is_actors(another):
                        raise
                    failure = another
        self.is_updating = False
        self.session.console.note(f"all actor ranks are back at step {self.progress.step}")

    def go_back(self) -> None:
        """Load the last checkpoint, or an older one where it is damaged; before the first one, the first policy."""
        if self.checkpoint is not None:
            newest = str(self.checkpoint)
            self.checkpoint = self.newest_whole(str(self.checkpoint.parent), newest) or Path(newest)
            self.controller.load_actor(str(self.checkpoint / "policy"))
            self.restore(self.checkpoint)
            return
        self.controller.load_actor(self.first_policy)
        kept = {name: getattr(self.progress, name) for name in ("first_success_rate", "base_policy")}
        self.checkpoint, self.progress = None, Progress(**kept)

    def rescue(self) -> None:
        """The run ends, but not for the actor's sake: keep what was learned since the last checkpoint."""
        if self.is_updating or not self.is_actor_loaded or self.saved_step == self.progress.step:
            return
        try:
            self.session.console.note(f"saved {self.save()} after step {self.progress.step}")
        except RunError as failure:
            self.session.console.warning(f"no checkpoint could be saved: {failure.message}")

    def begin(self) -> None:
        """Start; where an actor worker is lost meanwhile, its whole group is replaced and what it did is done again."""
        while True:
            try:
                return self.start()
            except RunError as failure:
                # a group that does not form although all its processes live would not form the next time either
                if not _is_actors(failure) or failure.exit_status is not ExitStatus.worker_lost:
                    raise
                self.controller.recovery.replace_actors(failure)

    def start(self) -> None:
        """Simulators and mesh first, then models, then the state of an earlier life of this run."""
        from rlrun.training.warm_start import first_policy
        from rlrun.training.whole_policy import require_whole_policy

        if self.at_hand is not None:
            self.load_to_act(self.at_hand)
            return
        with self.session.phase("start simulators"):
            self.controller.load_simulators()
            self.controller.form_mesh()
        checkpoint = self.to_resume()
        policy = (checkpoint / "policy" if checkpoint else first_policy(self.session)).absolute()
        self.checkpoint, self.first_policy = checkpoint, str(policy)
        self.progress.base_policy = str(policy)
        with self.session.phase("load models"):
            self.controller.load_actor(str(policy))
            if checkpoint is not None:
                self.restore(checkpoint)
            is_apart = self.config.actor.lora.is_sent_apart  # checkpoints hold policies with their adapters merged
            acting = self.progress.base_policy if is_apart else str(policy)
            if checkpoint is not None and is_apart:
                require_whole_policy(Path(acting), "policy.path", self.config.checkpoint.verify, self.session.progress)
            self.controller.load_rollout(acting)
        if checkpoint is not None:
            self.session.console.note(f"resumed {checkpoint} at step {self.progress.step}")
        self.sync()

    def load_to_act(self, policy: Path) -> None:
        """All but the actor workers, which come up while the first policy is evaluated."""
        with self.session.phase("load models"):
            self.controller.load_to_act(str(policy))
        self.session.console.note(f"first policy: {policy}")
        self.first_policy = self.progress.base_policy = str(policy)
        self.controller.processes.launch("actor")

    def load_actor_late(self) -> None:
        """The first policy for the actor workers that came up meanwhile."""
        with self.session.phase("load actor"):
            self.controller.form_mesh()
            self.controller.load_actor(self.first_policy)
        self.sync()
        self.is_actor_loaded = True

    def to_resume(self) -> Path | None:
        """The checkpoint to go on from; None: a fresh start."""
        wanted = self.config.checkpoint.resume
        if wanted is None:
            return None
        if wanted == "auto":
            return self.newest_whole(str(self.session.run_dir / CHECKPOINTS))
        if checkpoint_folder.is_checkpoint(Path(wanted)):
            with self.session.phase("verify checkpoints"):
                self.controller.require_whole(wanted)
            return Path(wanted)
        found = self.newest_whole(wanted)
        if found is None:
            raise RunError(
                f"There is no checkpoint in {wanted}.",
                key="checkpoint.resume",
                value=wanted,
                remedy="Name a run's checkpoints folder, or one checkpoint in it; null starts afresh.",
                exit_status=ExitStatus.bad_input,
            )
        return found

    def newest_whole(self, root: str, at_most: str | None = None) -> Path | None:
        """The newest whole checkpoint of a folder; what is passed over is said. None: the folder has none at all."""
        with self.session.phase("verify checkpoints"):
            found, skipped = self.controller.newest_checkpoint(root, at_most)
        for told in skipped:
            self.session.console.warning(told)
        return Path(found) if found else None

    def restore(self, checkpoint: Path) -> None:
        """Bring the loaded actor, and the counters, to where the checkpoint was written."""
        self.progress = Progress.read(self.controller.restore(str(checkpoint)), checkpoint)
        self.checkpoint, self.saved_step = checkpoint, self.progress.step

    def step(self) -> None:
        """Sync, collect and update; what it came to is told when there is time."""
        progress = self.progress
        started_s, started, self.sync_s = time.time(), time.monotonic(), 0.0
        batch, metrics = self.collect_and_update()
        self.check_finite(metrics)
        metrics["policy_age"] = progress.policy_version - batch.policy_version
        progress.step += 1
        progress.policy_version += 1
        self.is_updating = False
        self.is_synced = False
        metrics |= self.settle()
        step_s = time.monotonic() - started
        progress.elapsed_s += step_s
        metrics |= {
            "sync_s": self.sync_s,
            "step_s": step_s,
            "evaluate_s": self.evaluate_s,
            "save_s": self.save_s,
            "env_steps_per_second": batch.num_control_steps / step_s,
        }
        self.evaluate_s = self.save_s = 0.0
        progress.env_steps += batch.num_control_steps
        metrics |= {
            "num_simulator_restarts": batch.num_simulator_restarts,
            "env_steps": progress.env_steps,
            "policy_version": progress.policy_version,
            "elapsed_s": progress.elapsed_s,
        }
        interval, losses = (started_s, time.time()), self.controller.recovery.drain()
        self.untold = partial(self.tell, progress.step, metrics, batch.episodes, losses, interval)
        if not self.controller.processes.is_concurrent:
            self.tell_last()

    def collect_and_update(self) -> tuple[Batch, dict[str, float]]:
        """A batch of the newest policy, and what learning from it came to."""
        under_way = self.begin_collect(self.progress.step)
        with self.collecting() as collecting:
            self.controller.open(under_way)
            self.tell_last()
            batch = self.controller.collected(under_way)
        self.is_updating = True
        with self.updating() as updating:
            metrics = self.controller.update(self.progress.step, batch, self.progress.policy_version + 1)
        return batch, metrics | {"collect_s": collecting.seconds, "update_s": updating.seconds}

    def begin_collect(self, step: int) -> Conversation:
        """Env workers begin their episodes while rollout workers take the newest weights, where they lack them."""
        under_way = self.controller.begin_collect(step, None if self.is_synced else self.progress.policy_version)
        self.bring_weights()
        return under_way

    def settle(self) -> dict[str, float]:
        """Nothing may be under way when the weights change; here nothing is."""
        return {}

    def collecting(self) -> AbstractContextManager[Stopwatch]:
        """The phase in which env workers are waited for."""
        return self.session.phase("collect", "env/chunk_steps", self.num_chunk_steps)

    def updating(self) -> AbstractContextManager[Stopwatch]:
        """The phase in which actor workers are waited for."""
        total = self.num_chunk_steps * self.config.algorithm.update_epochs
        return self.session.phase("update", "actor/learned_chunk_steps", total)

    @property
    def num_buckets(self) -> int:
        """Of weights, that all rollout workers take in a training step."""
        return self.controller.num_buckets * self.config.rollout.num_workers

    @property
    def num_chunk_steps(self) -> int:
        """Of a training step."""
        algorithm = self.config.algorithm
        return algorithm.horizon * algorithm.rollout_epochs * self.config.env.num_envs

    def check_finite(self, metrics: dict[str, float]) -> None:
        """Refuse to go on when not one optimizer step of an update could be taken."""
        if metrics["num_nonfinite"] and metrics["num_nonfinite"] == metrics["num_optimizer_steps"]:
            raise RunError(
                f"Every gradient of training step {self.progress.step + 1} was infinite or not a number.",
                cause="the policy has diverged, or the rewards or values are not finite",
                remedy="resume from the last checkpoint with a lower actor.lr, or actor.param_precision=fp32",
                exit_status=ExitStatus.diverged,
            )

    def bring_weights(self) -> None:
        """Let the rollout workers have the newest weights before they act, where they lack them."""
        if not self.is_synced:
            with self.session.phase("sync", "rollout/weight_buckets", self.num_buckets) as syncing:
                self.sync()
            self.sync_s += syncing.seconds

    def sync(self) -> None:
        """Bring the newest weights to the rollout workers."""
        self.controller.sync_weights(self.progress.policy_version)
        self.is_synced = True

    def tell_last(self) -> None:
        """Tell of the last step, if that was not done yet."""
        untold, self.untold = self.untold, None
        if untold is not None:
            untold()

    def tell(
        self,
        step: int,
        metrics: dict[str, float],
        episodes: list[EpisodeReport],
        losses: list[WorkerLoss],
        interval: tuple[float, float],
    ) -> None:
        """Log one step everywhere. interval: its start and end, seconds of time.time()."""
        from rlrun.observability.records import episode_metrics, loss_metrics, record_episodes, record_losses

        session = self.session
        record_episodes(session.run_dir, step, episodes)
        record_losses(session.run_dir, step, losses)
        metrics |= loss_metrics(losses) | episode_metrics(episodes, losses) | session.busy.of(*interval)
        session.sinks.log(step, metrics)
        session.console.step(step, metrics)

    def is_due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now; 0 is never."""
        return every > 0 and self.progress.step % every == 0

    def is_time_over(self) -> bool:
        """Whether `max_minutes` have been spent in training steps."""
        limit = self.config.max_minutes
        return limit is not None and self.progress.elapsed_s >= 60 * limit

    def keep(self) -> None:
        """Evaluate and save, where due. Both happen at the same steps in a resumed run."""
        is_filmed = self.is_due(self.config.logging.video_every_steps)
        is_last = self.progress.step == self.config.num_steps  # `finish` evaluates then
        if not is_last and (is_filmed or self.is_due(self.config.evaluation.every_steps)):
            self.tell_last()
            self.evaluate(is_filmed)
        if self.is_due(self.config.checkpoint.every_steps):
            self.tell_last()
            self.save()

    def evaluate(self, is_filmed: bool) -> float:
        """Success rate of the newest policy on the fixed seeds. Raises CutShort where a signal came first."""
        from rlrun.training.evaluation import evaluate, sentence

        self.bring_weights()
        self.progress.is_evaluation_owed = True
        try:
            with self.session.stop.at_once():
                start = time.monotonic()
                record = evaluate(self.session, self.progress.step, is_filmed)
                self.evaluate_s += time.monotonic() - start
        except KeyboardInterrupt:
            raise (CutShort if self.session.stop.is_requested else KeyboardInterrupt) from None
        self.progress.is_evaluation_owed = False
        self.session.console.note(f"evaluation after step {self.progress.step}: {sentence(record)}")
        self.is_best = record.success_rate > self.progress.best_success_rate
        self.progress.best_success_rate = max(self.progress.best_success_rate, record.success_rate)
        return record.success_rate

    def save(self) -> Path:
        """Write a checkpoint; it is complete or absent."""
        root, is_best, self.is_best = self.session.run_dir / CHECKPOINTS, self.is_best, False
        what, usual_s = f"checkpoint of step {self.progress.step}", self.usual_save_s()
        with self.session.phase("save") as saving, self.session.disk.watched(what, self.expected_bytes(), usual_s):
            self.checkpoint = Path(self.controller.save(str(root), asdict(self.progress), is_best))
        self.save_s += saving.seconds
        self.session.disk.judge(what, folder_bytes(self.checkpoint), saving.seconds)
        self.saved_step = self.progress.step
        return self.checkpoint

    def usual_save_s(self) -> float | None:
        """The longest that saving has taken; None: it is the first time."""
        return self.session.watchdog.budgets.usual("driver", "save", False)

    def expected_bytes(self) -> float:
        """Of a checkpoint: as the last one, or what the policy with its optimizer state may come to."""
        if self.checkpoint is not None:
            return folder_bytes(self.checkpoint)
        return _COPIES * folder_bytes(Path(self.first_policy))

    def leave(self) -> ExitStatus:
        """A signal came: save, and ask to be started again."""
        if not self.is_actor_loaded:
            return self.leave_unsaved()
        self.tell_last()
        self.session.tell_stop()
        folder = self.save()
        self.session.stop.is_obeyed = True
        name = self.session.stop.name
        self.session.console.result(f"{name}: saved {folder} after step {self.progress.step}; start again to resume")
        return ExitStatus.preempted

    def leave_unsaved(self) -> ExitStatus:
        """A signal came before there was anything to save. Raises KeyboardInterrupt where it came from the keyboard."""
        stop = self.session.stop
        if stop.name in (None, "SIGINT"):
            raise KeyboardInterrupt
        stop.is_obeyed = True
        self.session.console.result(f"{stop.name}: ended before the first step; start again")
        return ExitStatus.preempted

    def finish(self) -> ExitStatus:
        """Last evaluation, policy folder, report."""
        from rlrun.report import write_report

        last = self.evaluate(is_filmed=True)
        self.save()
        folder = self.session.run_dir / "policy"
        with self.session.phase("export"), self.session.disk.watched("policy folder", self.expected_bytes(), None):
            self.controller.export(str(folder))
        self.session.flush_timeline()
        report = write_report(self.session.run_dir)
        first = self.progress.first_success_rate
        self.session.console.result(f"success {100 * first:.0f} % -> {100 * last:.0f} %")
        self.session.console.result(f"policy {folder}\nreport {report}")
        return ExitStatus.ok


def _is_actors(failure: RunError) -> bool:
    return (failure.worker or "").startswith("actor/")


@entry_point(
    "Train a policy by reinforcement learning, from a given policy or from demonstrations.",
    aliases={"replay": "replay.path"},
)
def main(config: RunConfig) -> ExitStatus:
    return train(config) if config.replay.path is None else replay(config)


if __name__ == "__main__":
    main()
