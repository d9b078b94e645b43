"""The parts of a training run around its loop: start, resume, rewind after a loss, stop, save, finish."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlrun.algorithms.spec import num_epochs
from rlrun.config import provenance
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.controller.collection import Collection
from rlrun.controller.controller import Batch
from rlrun.data import checkpoint_folder
from rlrun.edges.wrong_message import WRONG_MESSAGE
from rlrun.observability.records import (
    Purpose,
    episode_metrics,
    group_metrics,
    loss_metrics,
    record_episodes,
    record_losses,
    record_starts,
    tally_metrics,
)
from rlrun.observability.report.page import write_report
from rlrun.observability.timeline import BusyShares
from rlrun.placement.choices import with_less_memory
from rlrun.system import machine_load
from rlrun.system.errors import OUT_OF_MEMORY, ExitStatus, RunError
from rlrun.training.callbacks import Callbacks
from rlrun.training.checkpoints import Checkpoints, Progress
from rlrun.training.evaluation import evaluate, record_world, sentence
from rlrun.training.hooks import Hooks
from rlrun.training.policy_folders import demonstrations, first_policy, fitting_cameras
from rlrun.training.run_folder import changed_course, changed_keys, for_more_steps, steps_to_repeat
from rlrun.training.session import Session
from rlrun.training.step_checks import StepChecks
from rlrun.training.world_info import LeftOutInfo
from rlrun.workers.group_filter import signal_metrics


class StopRequested(Exception):
    """A signal asked the run to end, and it can end here."""


class Run:
    """A training run. A loop of `rlrun.training` calls its methods, in the order of that loop.

    Example: Run(session).complete(synchronous)
    """

    def __init__(self, session: Session, callbacks: Callbacks | None = None):
        """session: opened with `resumed_by`."""
        self.callbacks = callbacks or Callbacks()
        self.session = session
        self.hooks = Hooks(self.callbacks, session, lambda: self.progress.step)
        self._left_out = LeftOutInfo()
        self.controller = session.controller
        self.progress = Progress()
        self.checkpoints = Checkpoints(session, partial(self.hooks.call, "on_checkpoint"))
        self._has_updated = False
        self._demonstrations: tuple[str, tuple[str, ...]] | None = None  # a dataset and its cameras, to learn from
        self.actor_version: int | None = None  # policy version of the actor; None: not loaded, or in an update
        # start of the step
        self._began_s = machine_load.steady_time()
        self._began = time.monotonic()
        self._between = session.phases.drain()  # seconds by phase between the last step and this one
        self.busy = BusyShares(session.flush_timeline)
        self.step_checks = StepChecks(self.config)

    @property
    def config(self) -> RunConfig:
        """The configuration of the run, which is the session's and the controller's."""
        return self.session.config

    def complete(self, loop: Callable[[Run], ExitStatus]) -> ExitStatus:
        """Start or resume, then run `loop` until it ends or a signal comes."""
        with self.hooks.ended_by_failure():
            try:
                self.start()
                self.hooks.begin()
                return loop(self)
            except StopRequested:
                return self.stop()

    # --- start ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start or resume. If an actor worker is lost during that, replace all actor workers and start again.

        Writes config.yaml only after the checkpoints accepted the configuration.
        Raises StopRequested after a signal.
        """
        try:
            with self.session.stop.interruptible():
                while not self._has_started():
                    pass
            provenance.write(self.config, self.session.run_dir, self.progress.step)
        except KeyboardInterrupt:
            self.session.console.note("interrupted before the first step: the workers end")
            if self.session.stop.name in (None, "SIGINT"):
                raise
            raise StopRequested from None

    def _has_started(self) -> bool:
        """Try to start. Return False if actor workers were lost, and replaced. Raises RunError."""
        try:
            self.load()
            return True
        except RunError as failure:
            # not retried if all processes are alive: a retry would fail as well
            if not _is_actors(failure) or failure.exit_status is not ExitStatus.worker_lost:
                raise
            self.controller.recovery.replace_actors(failure)
            return False

    def load(self) -> None:
        """Load simulators and connect the actor ranks, then load models, then the checkpoint to resume from."""
        with self.session.phase("start simulators"):
            self.controller.load_simulators()
            record_world(self.session)
            self.controller.form_mesh()
        checkpoint = self.checkpoints.to_resume()
        if checkpoint is not None:
            self._tell_changes(checkpoint)
        policy = (checkpoint / "policy" if checkpoint else first_policy(self.session)).absolute()
        self.progress.base_policy = str(policy)
        with self.session.phase("load models"):
            self.controller.load_actor(str(policy))
            if checkpoint is not None:
                self.progress = self.checkpoints.restore(checkpoint)
            self.controller.load_rollout(str(policy))
        self._take_demonstrations()
        self.actor_version = self.progress.policy_version
        if checkpoint is not None:
            again = steps_to_repeat(self.session.run_dir, self.progress.step)
            self.session.console.note(f"resumed {checkpoint} at step {self.progress.step}{again}")
            if self.config.algorithm.carry_episodes:
                self.controller.recovery.tell_inexact("running episodes were dropped")
            self.session.sinks.resumed(self.progress.step)
        self.controller.sync_weights(self.progress.policy_version)

    def _take_demonstrations(self) -> None:
        """Let the loaded actor ranks learn from demonstrations beside collected steps, if the algorithm needs them."""
        algorithm = self.config.algorithm
        if not (ALGORITHMS.get(algorithm.name).needs_demonstrations or algorithm.imitation_coef > 0):
            return
        if self._demonstrations is None:
            dataset = demonstrations(self.session).absolute()
            self._demonstrations = str(dataset), fitting_cameras(self.session, dataset)
        count = self.controller.take_demonstrations(*self._demonstrations)
        self.session.console.note(f"{count} demonstrated chunk steps beside those that are collected")

    def _tell_changes(self, checkpoint: Path) -> None:
        """Print the changes of the configuration since the checkpoint."""
        for changed in changed_keys(checkpoint, self.config):
            self.session.console.note(changed)
        for changed in changed_course(checkpoint, self.config, checkpoint_folder.stored_step(checkpoint) or 0):
            self.session.console.warning(changed)

    # --- a training step --------------------------------------------------------------------

    def is_over(self) -> bool:
        """Return whether all steps are done, training steps have taken `max_minutes`, or a callback ends the run."""
        limit = self.config.max_minutes
        is_late = limit is not None and self.progress.elapsed_s >= 60 * limit
        return is_late or self.progress.step >= self.config.num_steps or self.callbacks.stop_reason is not None

    def begin_step(self) -> None:
        """Begin a training step. Raises StopRequested if a signal came."""
        if self.session.stop.is_requested:
            raise StopRequested
        self.session.folder.require()
        self.checkpoints.poll()
        self._between = self.session.phases.drain()
        self.session.driver.step = self.progress.step + 1
        self._began_s = machine_load.steady_time()
        self._began = time.monotonic()

    def has_next_step(self) -> bool:
        """Return whether another step follows the present one, unless a stop is requested later."""
        return self.progress.step + 1 < self.config.num_steps and not self.session.stop.is_requested

    def start_collection(self, step: int) -> Collection:
        """Start to collect step `step`. The newest policy answers env workers once `sync_weights` has sent it."""
        return self.controller.start_collection(step, self.progress.policy_version)

    def sync_weights(self) -> None:
        """Send the newest policy to the rollout workers, unless they hold it."""
        if self.controller.held_version == self.progress.policy_version:
            return
        num_buckets = self.controller.num_buckets * self.config.rollout.num_workers
        with self.session.phase("sync", "rollout/weight_buckets", num_buckets):
            self.controller.sync_weights(self.progress.policy_version)

    def finish_collection(self, collection: Collection) -> Batch:
        """Wait for the env workers. Returns their batch."""
        with self.session.phase("collect", "env/chunk_steps", self.num_chunk_steps):
            return self.controller.finish_collection(collection)

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch, which completes one step and makes one policy version. Returns metrics."""
        total = self.num_chunk_steps * num_epochs(self.config.algorithm)
        self.actor_version = None
        with self.session.phase("update", "actor/learned_chunk_steps", total):
            metrics = self.controller.update(self.progress.step, batch)
        self._has_updated = True
        self._check_finite(metrics)
        metrics["policy_age"] = self.progress.policy_version - batch.policy_version
        self.progress.step += 1
        self.progress.policy_version += 1
        self.actor_version = self.progress.policy_version
        return metrics

    @property
    def num_chunk_steps(self) -> int:
        """Return the number of chunk steps of a training step."""
        return self.config.samples_per_step

    def _check_finite(self, metrics: dict[str, float]) -> None:
        """Raise RunError if every optimizer step of an update was skipped."""
        if metrics["num_nonfinite"] and metrics["num_nonfinite"] == metrics["num_optimizer_steps"]:
            raise RunError(
                f"Every gradient of training step {self.progress.step + 1} was infinite or not a number.",
                cause="the policy has diverged, or the rewards or values are not finite",
                remedy="resume from the last checkpoint with a lower actor.lr, or actor.param_precision=fp32",
                exit_status=ExitStatus.diverged,
            )

    def log(self, batch: Batch, metrics: dict[str, float]) -> None:
        """Count the finished step, log it to the sinks and the console, and print warnings about it.

        Raises RunError if the simulators break in step after step.
        """
        session = self.session
        progress = self.progress
        within = session.phases.drain()
        seconds = {f"{phase}_s": within[phase] for phase in ("sync", "collect", "update")}
        seconds |= {f"{phase}_s": self._between[phase] for phase in ("evaluate", "save")}
        seconds["step_s"] = time.monotonic() - self._began
        progress.elapsed_s += seconds["step_s"]
        progress.env_steps += batch.num_control_steps
        losses = self.controller.recovery.drain()
        record_episodes(session.run_dir, progress.step, batch.episodes)
        record_losses(session.run_dir, progress.step, losses)
        starts = [start for report in batch.reports for start in report.starts]
        record_starts(session.run_dir, progress.step, Purpose.training, starts)
        metrics |= seconds | {
            "env_steps_per_second": batch.num_control_steps / seconds["step_s"],
            "num_simulator_restarts": batch.num_simulator_restarts,
            "env_steps": progress.env_steps,
            "policy_version": progress.policy_version,
            "elapsed_s": progress.elapsed_s,
        }
        metrics |= loss_metrics(losses) | episode_metrics(batch.episodes, losses)
        metrics |= tally_metrics([report.tally for report in batch.reports])
        metrics |= group_metrics(report.groups for report in batch.reports)
        metrics |= signal_metrics(batch.episodes, self.config.algorithm)
        metrics |= self.busy.of_step(self._began_s, machine_load.steady_time()) | session.memory.end_step(progress.step)
        metrics |= session.throughput.of_step(metrics)
        if note := self._left_out.note(batch.reports):
            session.console.note(note)
        self.hooks.log_step(metrics)
        for growth in session.memory.warnings(progress.step, self.config.num_steps, seconds["step_s"]):
            session.console.warning(growth)
        for loss in losses:
            self.hooks.call("on_loss", progress.step, loss)
        for warning in self.step_checks.check(metrics, batch.reports):
            session.console.warning(warning)
            session.sinks.alert(f"step {progress.step}", warning)

    # --- between two steps ------------------------------------------------------------------

    def run_pending_evaluation(self) -> None:
        """Evaluate the first policy, or the one whose evaluation a signal interrupted before the run was resumed."""
        if self.progress.step == 0 and self.progress.first_success_rate < 0:
            self.progress.first_success_rate = self.evaluate(has_video=True)
        elif self.progress.is_evaluation_owed and not self.is_over():
            self.evaluate(has_video=self._is_due(self.config.logging.video_every_steps))
            if self._is_best_to_save():
                self.checkpoints.save(self.progress)

    def evaluate_and_save_if_due(self) -> None:
        """Evaluate and save at multiples of their intervals, which are the same steps in a resumed run.

        The policy of the best evaluation is saved at once: the one of the next regular checkpoint is another.
        """
        has_video = self._is_due(self.config.logging.video_every_steps)
        is_last = self.progress.step == self.config.num_steps  # `finish` evaluates after the last step
        if not is_last and (has_video or self._is_due(self.config.evaluation.every_steps)):
            self.evaluate(has_video)
        if self._is_due(self.config.checkpoint.every_steps) or self._is_best_to_save():
            if self.config.checkpoint.is_asynchronous and not is_last:
                self.checkpoints.begin(self.progress)
            else:
                self.checkpoints.save(self.progress)

    def _is_best_to_save(self) -> bool:
        """Return whether the present policy's evaluation is the best one, and the run keeps such checkpoints."""
        settings = self.config.checkpoint
        return self.progress.is_best and settings.is_best_kept and settings.every_steps > 0

    def _is_due(self, every: int) -> bool:
        """Return whether something that happens every `every` steps happens now; 0: never."""
        return every > 0 and self.progress.step % every == 0

    def evaluate(self, has_video: bool) -> float:
        """Return the success rate of the newest policy on the fixed seeds. Raises StopRequested after a signal."""
        progress = self.progress
        stop = self.session.stop
        self.sync_weights()
        progress.is_evaluation_owed = True
        try:
            with stop.interruptible():
                record = evaluate(self.session, progress.step, progress.policy_version, has_video)
        except KeyboardInterrupt:
            raise (StopRequested if stop.is_requested else KeyboardInterrupt) from None
        progress.is_evaluation_owed = False
        self.session.console.note(f"evaluation after step {progress.step}: {sentence(record, self.config.env)}")
        progress.take_evaluation(record.success_rate)
        self.hooks.call("on_evaluation", record)
        return record.success_rate

    # --- losses -----------------------------------------------------------------------------

    def recover(self, failure: RunError) -> None:
        """Go back to the last checkpoint after the loss of an actor worker, and collect a step again whose trajectories
        the actor refused. Save and raise any other failure, with evidence."""
        self.session.folder.require()  # its loss explains any failure
        if failure.kind == OUT_OF_MEMORY and self._take_less_memory(failure):
            return
        if _is_actors(failure) and failure.kind != OUT_OF_MEMORY:
            self.rewind(failure)
            return
        if failure.kind == WRONG_MESSAGE:
            try:
                self.controller.recovery.replace(failure)
                self.actor_version = self.progress.policy_version  # it has learned nothing of the step
                return
            except RunError as final:
                failure = final
        self.session.console.warning(failure.message.splitlines()[0])  # saving may take a while
        if failure.exit_status is not ExitStatus.storage:
            record_losses(self.session.run_dir, self.progress.step + 1, self.controller.recovery.drain())
            if failure.worker is not None and failure.exit_status is not ExitStatus.stalled:  # an alarm has its archive
                self.session.watchdog.keep_evidence(failure)
            self.rescue()
        raise failure

    def _take_less_memory(self, failure: RunError) -> bool:
        """After a first update without room, restart the actor ranks with smaller micro-batches, and say so.

        Ranks that wait for the failed one in a collective cannot go on from there, so all of them start anew, and the
        step is collected again. Returns False if an update had room before, or if nothing smaller is left.
        """
        lowered = with_less_memory(self.config) if not self._has_updated else None
        if lowered is None:
            return False
        before = self.config.actor
        now = lowered.actor
        changed = [
            f"actor.{key}={provenance.format_value(new_value)} instead of {provenance.format_value(old_value)}"
            for key in ("replicate_frozen", "micro_batch_size", "activation_checkpointing")
            if (new_value := getattr(now, key)) != (old_value := getattr(before, key))
        ]
        self.session.console.warning(
            f"{failure.message.rstrip('.')}, the first one: {', '.join(changed)} from now on ({failure.cause})"
        )
        self.controller.configure(lowered)
        provenance.write(lowered, self.session.run_dir, self.progress.step)
        lost = ExitStatus.worker_lost
        self.rewind(RunError(failure.message, cause=failure.cause, exit_status=lost, worker=failure.worker))
        return True

    def rewind(self, failure: RunError) -> None:
        """Restart all actor workers from the last checkpoint. Raises RunError if the loss is final."""
        self.actor_version = None
        self.checkpoints.abandon()
        with self.session.phase("restart actors"):
            while True:
                self.controller.recovery.replace_actors(failure)
                try:
                    self.controller.form_actor_mesh()
                    self._go_back()
                    self.controller.join_rollout_workers()
                    self.controller.sync_weights(self.progress.policy_version)
                    break
                except RunError as another:  # another actor worker was lost meanwhile
                    if not _is_actors(another):
                        raise
                    failure = another
        self.actor_version = self.progress.policy_version
        self.session.console.note(f"all actor ranks are back at step {self.progress.step}")

    def _go_back(self) -> None:
        """Load the last checkpoint, an older one if it is damaged, or the first policy if there is none yet."""
        newest = self.checkpoints.newest
        if newest is not None:
            checkpoint = self.checkpoints.latest_valid(newest.parent, at_most=newest) or newest
            self.controller.load_actor(str(checkpoint / "policy"))
            self.progress = self.checkpoints.restore(checkpoint)
        else:
            first = self.progress.first_success_rate
            base = self.progress.base_policy
            self.controller.load_actor(base)
            self.progress = Progress(first_success_rate=first, base_policy=base)
            self.progress.take_evaluation(first)
        self._take_demonstrations()
        self.session.sinks.resumed(self.progress.step)

    def rescue(self) -> None:
        """Save the progress since the last checkpoint, if there is any, before a failed run ends."""
        try:
            self.checkpoints.wait_until_saved()
            if self.actor_version != self.progress.policy_version or self.checkpoints.step == self.progress.step:
                return
            self.session.console.note(f"saved {self.checkpoints.save(self.progress)} after step {self.progress.step}")
        except RunError as failure:
            self.session.console.warning(f"no checkpoint could be saved: {failure.message}")

    # --- end --------------------------------------------------------------------------------

    def stop(self) -> ExitStatus:
        """End after a signal: save any progress, and return the exit status that asks for a restart."""
        stop = self.session.stop
        console = self.session.console
        if self.actor_version is None:
            stop.handled = True
            console.result(f"{stop.name}: ended before the first step")
        else:
            stop.announce(console.note)
            with stop.saving():
                self.checkpoints.wait_until_saved()
            is_saved = self.checkpoints.holds(self.progress)
            folder = self.checkpoints.newest if is_saved else self.checkpoints.save(self.progress)
            stop.handled = True
            console.result(f"{stop.name}: saved {folder} after step {self.progress.step}")
        console.result(f"to resume: {self.session.resume_command}")
        self.hooks.end(ExitStatus.preempted)
        return ExitStatus.preempted

    def finish(self) -> ExitStatus:
        """Write the last evaluation, checkpoint, policy folder and report."""
        if self.callbacks.stop_reason is not None:
            self.session.console.note(f"ended after step {self.progress.step} by {self.callbacks.stop_reason}")
        last = self.evaluate(has_video=True)
        self.checkpoints.save(self.progress)
        session = self.session
        folder = self.session.run_dir / "policy"
        num_bytes = self.checkpoints.expected_bytes(self.progress)
        with session.phase("export"), session.disk.watched("policy folder", num_bytes, None):
            self.controller.export(str(folder))
        session.flush_timeline()
        self.hooks.end(ExitStatus.ok)
        report = write_report(session.run_dir)
        session.console.result(f"success {100 * self.progress.first_success_rate:.0f} % -> {100 * last:.0f} %")
        session.folder.warn_if_idle(session.console.warning)
        session.console.result(f"policy {folder}")
        session.console.result(f"report {report}")
        session.console.result(for_more_steps(session.resume_command, self.config, self.progress.step))
        return ExitStatus.ok


def _is_actors(failure: RunError) -> bool:
    """Return whether an actor worker is at fault."""
    return (failure.worker or "").startswith("actor/")
