"""Catalogue of all metrics, and the sinks of a run: JSONL always, TensorBoard, W&B and Trackio by configuration.

The catalogue has name, group, meaning, unit and healthy range of each metric; docs/reference/metrics.md shows it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.observability.records import EvaluationRecord, evaluation_metrics
from rlrun.observability.run_files import METRICS, NOTES, VIDEOS, JsonLines
from rlrun.observability.video import write_mp4
from rlrun.system.errors import escape_control


class MetricGroup(Enum):
    """Groups of metrics, with their headings."""

    eval = "Evaluation: episodes with fixed seeds, from which nothing is learned"
    train = "Training: the episodes that a step learned from, and the optimizer"
    loss = "Losses, and the health of an update"
    time = "Time and throughput"
    perf = "Use of the accelerators, where their peak is known"
    memory = "Host memory; the report shows slopes, and a warning comes before a node is full"
    faults = "Faults, of which a healthy run has none"


@dataclass(frozen=True)
class Metric:
    """One metric. Example: Metric("success_rate", Group.train, "share of …", "0 to 1", "rises")."""

    name: str
    group: MetricGroup
    meaning: str
    unit: str
    healthy: str  # range or course in a run that learns; "" if every value is

    @property
    def tag(self) -> str:
        """Name with group. Example: "train/success_rate"."""
        return f"{self.group.name}/{self.name}"


_E, _R, _L, _T, _P, _M, _F = MetricGroup
CATALOGUE = (
    Metric("success_rate", _E, "share of successful episodes; the line `success: …` defines them", "0 to 1", "rises"),
    Metric("success_rate_low", _E, "lower end of the 95 % Wilson interval of the success rate", "0 to 1", ""),
    Metric("success_rate_high", _E, "upper end of the 95 % Wilson interval of the success rate", "0 to 1", ""),
    Metric("episode_return", _E, "mean sum of rewards per episode", "reward", "rises"),
    Metric("q_score", _E, "mean q-score at the end of the episodes", "0 to 1", "rises"),
    Metric("num_episodes", _E, "valid episodes", "count", "evaluation.num_episodes"),
    Metric("num_infra_faults", _E, "episodes lost to simulator faults; they are repeated", "count", "0"),
    Metric(
        "success_rate",
        _R,
        "share of successful episodes, while exploring, of all that were collected",
        "0 to 1",
        "rises",
    ),
    Metric(
        *("batch_success_rate", _R, "filter_groups: the same, of the groups with signal, which are learned from"),
        *("0 to 1", ""),
    ),
    Metric("episode_return", _R, "mean sum of rewards per episode", "reward", "rises"),
    Metric("episode_length", _R, "mean length of the episodes", "control steps", ""),
    Metric("q_score", _R, "mean share of the goal's conditions that hold and did not hold at the reset", "0 to 1", ""),
    Metric("num_episodes", _R, "valid episodes that ended in the step", "count", "at least one in most steps"),
    Metric("num_chunk_steps", _R, "chunk steps that the step learned from", "count", "horizon x envs, less void ones"),
    Metric(
        *("groups_with_signal", _R, "share of the collected groups whose episodes differ in filter_groups.metric"),
        *("0 to 1", "well above 0"),
    ),
    Metric("num_groups", _R, "filter_groups: groups that the batch has room for", "count", "envs / group_size"),
    Metric("num_gen_batches", _R, "filter_groups: collections of a group, the largest number", "count", "falls"),
    Metric("num_dropped_groups", _R, "filter_groups: collections of a group that had no signal", "count", "falls"),
    Metric("num_missing_groups", _R, "filter_groups: groups without signal, left out at the bound", "count", "0"),
    Metric("env_steps", _R, "control steps since the start of the run", "control steps", ""),
    Metric("policy_version", _R, "updates of the policy since the start of the run", "count", ""),
    Metric(
        *("policy_age", _R, "updates between the policy that acted and the one that learned", "count"),
        "0; rlrun.train_async: at most 1",
    ),
    Metric("lr", _R, "learning rate of the next optimizer step, value head excepted", "", "actor.lr and its schedule"),
    Metric(
        *("num_optimizer_steps", _R, "optimizer steps of the update", "count"),
        "update_epochs x minibatches, unless stopped by target_kl",
    ),
    Metric("grad_norm", _R, "norm of the gradients before clipping", "", "finite; long above clip_grad_norm: lower lr"),
    Metric("advantage_mean", _R, "mean advantage before normalisation", "reward", "near 0"),
    Metric("advantage_abs", _R, "mean absolute advantage before normalisation", "reward", "above 0"),
    Metric("return_mean", _R, "mean return, the target of the critic", "reward", ""),
    Metric("value_mean", _R, "mean value that the critic predicted", "reward", "PPO: near return_mean"),
    Metric(
        *("explained_variance", _R, "1 - Var(returns - values) / Var(returns)", "at most 1"),
        "rises towards 1; below 0 the critic is worse than a constant",
    ),
    Metric("policy_loss", _L, "clipped surrogate; its sign and size say little", "", "finite"),
    Metric("value_loss", _L, "Huber loss of the critic, clipped", "", "falls, or stays low"),
    Metric("entropy", _L, "entropy of a choice, mean over choices", "nat", "falls slowly; a sudden fall: collapse"),
    Metric("approx_kl", _L, "mean log-probability lost by the taken actions in the update", "nat", "below target_kl"),
    Metric("kl_k3", _L, "the same by the k3 estimate, which is never negative", "nat", "below target_kl"),
    Metric("kl_exact", _L, "the same in closed form, for policies that have one", "nat", "below target_kl"),
    Metric("kl_reference", _L, "KL from the policy at the start of the run", "nat", "grows slowly"),
    Metric("clip_fraction", _L, "share of units whose ratio was clipped", "0 to 1", "below 0.3"),
    Metric("dual_clip_fraction", _L, "share of units bounded by clip_ratio_c", "0 to 1", "near 0"),
    Metric("ratio", _L, "mean ratio of new to old probability", "", "near 1"),
    Metric("behavior_weight", _L, "mean importance weight of actions of an older policy", "", "near 1"),
    Metric("value_clip_fraction", _L, "share of values that moved beyond value_clip", "0 to 1", "below 0.5"),
    Metric("value_error", _L, "mean absolute error of the critic", "reward", "falls"),
    Metric("imitation_loss", _L, "with imitation_coef: loss of the demonstrations", "", "falls, or stays low"),
    Metric("token_accuracy", _L, "the same: share of demonstrated bins that are the likeliest", "0 to 1", "high"),
    Metric("bin_error", _L, "the same: mean distance of the likeliest bin", "bins", "low"),
    *(
        Metric(
            *(f"{sign}_loss", _L, f"NFT: flow-matching error of the velocity for {which} actions"),
            *("", "finite; with adaptive_weighting divided by its own size, so that it hides a growing error"),
        )
        for sign, which in (("positive", "good"), ("negative", "bad"))
    ),
    Metric(
        *("own_flow_error", _L, "NFT: mean squared flow-matching error of the policy on its own actions, undivided"),
        *("", "below twice its first value"),
    ),
    Metric("critic_loss", _L, "SAC, RLPD, DSRL: mean squared error of the critics", "", "finite"),
    Metric(
        *("noise_entropy", _L, "DSRL: entropy of a number of the first noise, over its bound", "nat"),
        "falls to target_entropy",
    ),
    Metric(
        *("action_entropy", _L, "SAC, RLPD: entropy of a number of an action, between -1 and 1", "nat"),
        "falls to target_entropy",
    ),
    Metric("alpha", _L, "SAC, RLPD, DSRL: weight of the entropy", "", "falls while the entropy is above its target"),
    Metric("is_kl_stopped", _L, "whether target_kl ended the update early", "0 or 1", "mostly 0"),
    Metric(
        *(
            "rollout_logprob_gap",
            _L,
            "mean difference of log-probabilities between actor and the farthest rollout worker, before the first "
            "optimizer step",
        ),
        *("nat", "both fp32: below 1e-3; bf16 or SGLang: below 0.1"),
    ),
    Metric(
        *("rollout_logprob_gap_least", _L, "the same, of the nearest rollout worker", "nat"),
        "as rollout_logprob_gap; if both are above it, the actor's weights differ from those that it sent",
    ),
    Metric(
        *("rollout_logprob_gap_max", _L, "the same, of the farthest chunk step", "nat"),
        "below 1, divided by a rollout.temperature below 1",
    ),
    Metric("rollout_logprob_gap_worker", _L, "rank of the rollout worker of rollout_logprob_gap", "rank", ""),
    Metric("rollout_logprob_gap_max_worker", _L, "rank of the rollout worker of rollout_logprob_gap_max", "rank", ""),
    Metric(
        *("rollout_draws", _L, "farthest rollout worker: mean of log-probability plus entropy, by its error"),
        *("standard deviations", "between -4 and 4; farther ones are not drawn from the policy"),
    ),
    Metric("rollout_draws_worker", _L, "rank of that rollout worker", "rank", ""),
    Metric(
        "weight_change", _L, "norm of the change of the trained weights, from samples of each tensor", "", "above 0"
    ),
    Metric("step_s", _T, "time of the training step", "s", "constant"),
    Metric("sync_s", _T, "time of sending weights to rollout workers", "s", ""),
    Metric("collect_s", _T, "time of waiting for env workers", "s", ""),
    Metric("update_s", _T, "time of the update", "s", ""),
    Metric("evaluate_s", _T, "time of evaluation between this step and the one before", "s", ""),
    Metric("save_s", _T, "time of saving between this step and the one before", "s", ""),
    Metric("elapsed_s", _T, "time of all training steps since the start of the run", "s", ""),
    Metric("env_steps_per_second", _T, "control steps of the training step by its time", "1/s", "constant"),
    *(
        Metric(f"busy_{role}", _T, f"share of the step in which {workers} worked", "0 to 1", "near 1 for one role")
        for role, workers in (
            ("env", "env workers"),
            ("rollout", "rollout workers"),
            ("actor", "actor workers"),
        )
    ),
    Metric("busy_resets", _T, "share of the step in which env workers reset simulators", "0 to 1", "near 0"),
    Metric("mfu_act", _P, "operations of answers over the peak, while rollout workers worked", "0 to 1", "0.3 to 0.55"),
    Metric(
        *(
            "mfu_update",
            _P,
            "operations of forward and backward passes, each counted once, over the peak, in an update",
        ),
        *("0 to 1", "0.3 to 0.5; a whole update that target_kl ended early counts as done"),
    ),
    Metric("chunk_steps_per_accelerator", _P, "chunk steps by the step's time and all accelerators", "1/s", "constant"),
    Metric("tokens_per_accelerator", _P, "tokens of these chunk steps, of the largest stack", "1/s", "constant"),
    Metric("env_steps_per_accelerator", _P, "control steps by the step's time and all accelerators", "1/s", "constant"),
    *(
        Metric(f"memory_{role}", _M, f"largest private memory of {process}, child processes included", "MB", "constant")
        for role, process in (
            ("env", "an env worker"),
            ("rollout", "a rollout worker"),
            ("actor", "an actor worker"),
        )
    ),
    Metric("memory_driver", _M, "private memory of the driver", "MB", "constant"),
    Metric("memory_free", _M, "memory that is available on the node that has least", "MB", "constant"),
    Metric("num_infra_faults", _F, "episodes lost to simulator faults", "count", "0"),
    Metric("num_simulator_restarts", _F, "simulators that were made again", "count", "0"),
    Metric("num_worker_restarts", _F, "workers that were replaced", "count", "0"),
    Metric("num_nonfinite", _F, "optimizer steps skipped, since a gradient was not finite", "count", "0"),
    Metric(
        "num_null_metrics",
        _F,
        "metrics of the step that were NaN or infinite; metrics.jsonl alone has it",
        "count",
        "0",
    ),
    Metric(
        "actions_outside", _F, "share of the actions' numbers beyond their limits, before clipping", "0 to 1", "near 0"
    ),
    Metric(
        *("frozen_pictures", _F, "share of pictures that did not change though the robot was told to move", "0 to 1"),
        "as at the start of the run",
    ),
)
_TRAINING = {metric.name: metric for metric in CATALOGUE if metric.group is not MetricGroup.eval}


def is_of_training(name: str) -> bool:
    """Return whether the catalogue has a metric of training steps by this name."""
    return name in _TRAINING


def training_tag(name: str) -> str:
    """Return the tag of a metric of a training step; `train/` for one from elsewhere whose name has no group."""
    if is_of_training(name):
        return _TRAINING[name].tag
    return name if "/" in name else f"{MetricGroup.train.name}/{name}"


def evaluation_tag(name: str) -> str:
    """Return the tag of a number of an evaluation. Example: "eval/success_rate"."""
    return f"{MetricGroup.eval.name}/{name}"


def markdown_table() -> str:
    """Return the tables of docs/reference/metrics.md, one per group."""
    lines: list[str] = []
    for group in MetricGroup:
        lines += [f"## {group.name}", "", f"{group.value}.", "", "| metric | meaning | unit | healthy |"]
        lines.append("|---|---|---|---|")
        metrics = [metric for metric in CATALOGUE if metric.group is group]
        lines += [f"| `{m.tag}` | {m.meaning} | {m.unit or '-'} | {m.healthy or 'any'} |" for m in metrics]
        lines.append("")
    return "\n".join(lines).rstrip()


class Sink(Protocol):
    """Sink of the metrics, videos, texts and alerts of a run. Steps are training steps.

    Trackers get metric names with their group, as "train/lr"; `JsonlSink` gets them without.
    """

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the numbers of one step. Those that are not finite are dropped, or marked if the format can do that."""

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Log a video: the encoded file, and its frames, uint8 [L, H, W, 3]."""

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text that belongs to a step."""

    def alert(self, title: str, text: str) -> None:
        """Send an alert, which a person should look at now."""

    def resumed(self, step: int) -> None:
        """Record that the run continues after training step `step`: logged values of later steps are void."""

    def close(self) -> None:
        """Flush and close."""


class JsonlSink:
    """Sink that writes one JSON object per step. NaN and infinity become null and count in `num_null_metrics`."""

    def __init__(self, run_dir: Path):
        self._metrics = JsonLines(run_dir / METRICS)
        self._notes = JsonLines(run_dir / NOTES)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one line with the metrics of a step."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        num_null = sum(value is None for value in finite.values())
        self._metrics.write({"step": step, "time_s": time.time(), **finite, "num_null_metrics": num_null})

    def video(self, step: int, name: str, path: Path, frames: np.ndarray, fps: float) -> None:
        """Append the path of the file to notes.jsonl."""
        self.text(step, name, f"video {path.name}, {len(frames)} frames, {fps:g} per second")

    def text(self, step: int, name: str, text: str) -> None:
        """Append a text to notes.jsonl."""
        self._notes.write({"step": step, "name": name, "text": text})

    def alert(self, title: str, text: str) -> None:
        """Append an alert to notes.jsonl."""
        self._notes.write({"alert": title, "text": text})

    def resumed(self, step: int) -> None:
        """Do nothing: readers take the last line of a step."""

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._notes.close()


class MetricSinks:
    """All sinks of a run: JSONL, and the trackers that the section `logging` enables.

    Example::

        sinks = MetricSinks(run_dir, config)
        sinks.log(3, {"success_rate": 0.5, "approx_kl": 0.01})
        sinks.video(3, "evaluation", frames, fps=15)
        sinks.close()
    """

    def __init__(self, run_dir: Path, config: RunConfig):
        self._run_dir = Path(run_dir)
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._jsonl = JsonlSink(self._run_dir)
        self._trackers: list[Sink] = []
        if config.logging.tensorboard:
            from rlrun.observability.tensorboard import TensorBoardSink  # half a second to import

            self._trackers.append(TensorBoardSink(self._run_dir))
        if config.logging.wandb:
            from rlrun.observability.wandb_run import WandbSink  # a second to import

            self._trackers.append(WandbSink(self._run_dir, config))
        if config.logging.trackio:
            from rlrun.observability.trackio_run import TrackioSink  # an optional package

            self._trackers.append(TrackioSink(self._run_dir, config))

    @property
    def _sinks(self) -> list[Sink]:
        return [self._jsonl, *self._trackers]

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of one training step. Raises TypeError, naming the metric, for a value that is no number."""
        numbers = {escape_control(name): _as_float(name, value) for name, value in metrics.items()}
        self._jsonl.log(step, numbers)
        for tracker in self._trackers:
            tracker.log(step, {training_tag(name): value for name, value in numbers.items()})

    def evaluation(self, record: EvaluationRecord) -> None:
        """Log the numbers of an evaluation to the trackers; evaluations.jsonl has them in its own form."""
        numbers = evaluation_metrics(record)
        for tracker in self._trackers:
            tracker.log(record.step, {evaluation_tag(name): value for name, value in numbers.items()})

    def video(self, step: int, name: str, frames: np.ndarray, fps: float) -> Path:
        """Encode uint8 [L, H, W, 3] into videos/NAME-step-N.mp4 and pass it to every sink. Returns the path."""
        name = escape_control(name)
        path = self._run_dir / VIDEOS / f"{name.replace('/', '-')}-step-{step:06d}.mp4"
        write_mp4(path, frames, fps)
        for sink in self._sinks:
            sink.video(step, name, path, frames, fps)
        return path

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text that belongs to a step."""
        for sink in self._sinks:
            sink.text(step, escape_control(name), escape_control(text))

    def alert(self, title: str, text: str) -> None:
        """Send an alert, which a person should look at now."""
        for sink in self._sinks:
            sink.alert(escape_control(title), escape_control(text))

    def resumed(self, step: int) -> None:
        """Record that the run continues after training step `step`, from a checkpoint."""
        for sink in self._sinks:
            sink.resumed(step)

    def close(self) -> None:
        """Flush and close every sink."""
        for sink in self._sinks:
            sink.close()


def _as_float(name: str, value: float) -> float:
    try:
        return float(value)  # also 0-d arrays and tensors
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r} is {value!r}, which is not one number") from error
