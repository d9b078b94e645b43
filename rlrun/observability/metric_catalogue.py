"""All metrics of a run: group, meaning, unit and healthy range; docs/reference/metrics.md has this table.

Names are unique, and metrics.jsonl has them as they are. TensorBoard, W&B and Trackio show `group/name`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Group(Enum):
    """Groups of metrics, with their headings."""

    eval = "Evaluation: episodes with fixed seeds, from which nothing is learned"
    train = "Training: the episodes that a step learned from, and the optimizer"
    loss = "Losses, and the health of an update"
    time = "Time and throughput"
    memory = "Host memory; the report shows slopes, and a warning comes before a node is full"
    faults = "Faults, of which a healthy run has none"


@dataclass(frozen=True)
class Metric:
    """One metric. Example: Metric("success_rate", Group.train, "share of …", "0 to 1", "rises")."""

    name: str
    group: Group
    meaning: str
    unit: str
    healthy: str  # range or course in a run that learns; "" if every value is

    @property
    def tag(self) -> str:
        """Name with group. Example: "train/success_rate"."""
        return f"{self.group.name}/{self.name}"


_E, _R, _L, _T, _M, _F = Group
METRICS = (
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
        "share of successful episodes, while exploring",
        "0 to 1",
        "rises",
    ),
    Metric("episode_return", _R, "mean sum of rewards per episode", "reward", "rises"),
    Metric("episode_length", _R, "mean length of the episodes", "control steps", ""),
    Metric("q_score", _R, "mean share of the goal's conditions that hold and did not hold at the reset", "0 to 1", ""),
    Metric("num_episodes", _R, "valid episodes that ended in the step", "count", "at least one in most steps"),
    Metric("num_chunk_steps", _R, "chunk steps that the step learned from", "count", "horizon x envs, less void ones"),
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
    Metric("critic_loss", _L, "DSRL: mean squared error of the critics", "", "finite"),
    Metric("noise_entropy", _L, "DSRL: entropy of a number of the first noise", "nat", "falls to target_entropy"),
    Metric("alpha", _L, "DSRL: weight of the entropy", "", "falls while the entropy is above its target"),
    Metric("is_kl_stopped", _L, "whether target_kl ended the update early", "0 or 1", "mostly 0"),
    Metric(
        *(
            "rollout_logprob_gap",
            _L,
            "mean difference of log-probabilities between actor and the farthest rollout worker",
        ),
        *("nat", "both fp32: below 1e-3; bf16 or SGLang: below 0.1"),
    ),
    Metric(
        *("rollout_logprob_gap_max", _L, "the same, of the farthest chunk step in the first epoch", "nat"),
        "below 1: the policy moves a little in that epoch",
    ),
    Metric("rollout_logprob_gap_worker", _L, "rank of that chunk step's rollout worker", "rank", ""),
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
        "actions_outside", _F, "share of the actions' numbers beyond their limits, before clipping", "0 to 1", "small"
    ),
    Metric(
        *("frozen_pictures", _F, "share of pictures that did not change though the robot was told to move", "0 to 1"),
        "as at the start of the run",
    ),
)
_TRAINING = {metric.name: metric for metric in METRICS if metric.group is not Group.eval}


def training_tag(name: str) -> str:
    """Return the tag of a metric of a training step; `train/` for one of a guest algorithm or policy."""
    return _TRAINING[name].tag if name in _TRAINING else f"{Group.train.name}/{name}"


def evaluation_tag(name: str) -> str:
    """Return the tag of a number of an evaluation. Example: "eval/success_rate"."""
    return f"{Group.eval.name}/{name}"


def markdown_table() -> str:
    """Return the tables of docs/reference/metrics.md, one per group."""
    lines: list[str] = []
    for group in Group:
        lines += [f"## {group.name}", "", f"{group.value}.", "", "| metric | meaning | unit | healthy |"]
        lines.append("|---|---|---|---|")
        own = [metric for metric in METRICS if metric.group is group]
        lines += [f"| `{m.tag}` | {m.meaning} | {m.unit or '-'} | {m.healthy or 'any'} |" for m in own]
        lines.append("")
    return "\n".join(lines).rstrip()
