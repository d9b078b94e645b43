"""Every metric that a run logs is in the table of metrics, and trackers get the evaluations too."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlrun
from rlrun.observability.metrics import CATALOGUE, MetricGroup
from rlrun.observability.run_files import read_metrics
from rlrun.observability.timeline import read_events, seconds_by_phase

SMALL = [
    *("env.num_envs=2", "algorithm.horizon=16", "algorithm.global_batch_size=32", "actor.micro_batch_size=32"),
    *("env.max_control_steps=12", "evaluation.num_episodes=2", "num_steps=2", "cluster.kind=local"),
    *("algorithm.kl_coef=0.1", "rollout.num_workers=1", "env.num_workers=2", "logging.profile_steps=[1]"),
]
NUM_ENV_WORKERS = 2
# of batches from an older policy, of flow policies, of DSRL, of NFT, of worlds with cameras, of filtered groups,
# of imitation beside
NOT_HERE = {"behavior_weight", "kl_exact", "critic_loss", "noise_entropy", "action_entropy", "alpha", "frozen_pictures"}
NOT_HERE |= {"positive_loss", "negative_loss", "own_flow_error", "groups_with_signal", "batch_success_rate"}
NOT_HERE |= {"num_groups", "num_gen_batches", "num_dropped_groups", "num_missing_groups"}
NOT_HERE |= {"imitation_loss", "token_accuracy", "bin_error"}
PERF = {metric.name for metric in CATALOGUE if metric.group is MetricGroup.perf}  # of accelerators
OF_THE_FILE = "num_null_metrics"  # trackers take NaN as it is


def test_every_metric_of_a_run_is_in_the_table(tmp_path: Path) -> None:
    rlrun.run(rlrun.load_config(["run=cartpole", *SMALL, f"output_dir={tmp_path}"]))
    logged = set().union(*read_metrics(tmp_path)) - {"step", "time_s"}
    known = {metric.name for metric in CATALOGUE if metric.group is not MetricGroup.eval}
    assert logged - known == set()
    assert known - logged <= NOT_HERE | PERF
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = set(events.Tags()["scalars"])
    assert {metric.tag for metric in CATALOGUE if metric.name not in {*NOT_HERE, *PERF, OF_THE_FILE}} <= tags
    assert {tag.partition("/")[0] for tag in tags} == {group.name for group in MetricGroup} - {"perf"}
    assert [scalar.step for scalar in events.Scalars("eval/success_rate")] == [0, 2]
    _all_roles_are_profiled(tmp_path)
    _spans_name_their_step(tmp_path)


def _all_roles_are_profiled(run_dir: Path) -> None:
    names = {path.name for path in (run_dir / "profile").iterdir()}
    workers = [f"env-{rank}" for rank in range(NUM_ENV_WORKERS)] + ["rollout-0", "actor-0"]
    assert {f"step-1-{worker}.txt" for worker in workers} <= names
    assert {name.split("-")[1] for name in names} == {"1"}
    assert "step_chunk" in (run_dir / "profile" / "step-1-env-0.txt").read_text()


def _spans_name_their_step(run_dir: Path) -> None:
    names = {event["name"] for event in read_events(run_dir / "timeline.json") if event["ph"] == "X"}
    assert {f"{name} {step}" for name in ("collect", "update", "simulate", "act") for step in (1, 2)} <= names
    phases = seconds_by_phase(run_dir / "timeline.json")
    assert {"simulate", "reset"} <= set(phases["env/0"]) and "update" in phases["actor/0"]
