"""Episodes over fixed seeds: success rate, confidence interval, video."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from rlrun.config import provenance
from rlrun.config.schema import EnvConfig, RunConfig, SelectionStarts
from rlrun.config.simulator_spec import simulator_spec
from rlrun.config.sources import reward_digest, world_digest
from rlrun.data.task_instances import InstanceResult, results_by_instance
from rlrun.edges.reports import EpisodeReport, LeftOutEpisode
from rlrun.edges.starts import TEST_SEEDS, VALIDATION_SEEDS
from rlrun.observability.records import (
    EvaluationRecord,
    Purpose,
    read_world,
    record_evaluation,
    record_starts,
    summarize_evaluation,
)
from rlrun.observability.run_files import WORLD
from rlrun.observability.video import Clip, tile
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.session import Session
from rlrun.training.significance import ALIKE, SURE, all_deviations

MIN_DOUBTED = 4  # episodes of an evaluation
VIDEO_FPS = 8.0  # one picture per chunk; with short chunks, slower than real time


def evaluate(session: Session, step: int, policy_version: int, has_video: bool) -> EvaluationRecord:
    """Run `evaluation.num_episodes` episodes with a policy that the rollout workers hold, and record them."""
    episodes = run_episodes(session, step, policy_version, evaluation_seeds(session.config), has_video)
    if step == 0 and (doubt := doubt_of_first(episodes, is_untrained=_begins_untrained(session.config))):
        session.console.warning(doubt)
    return record(session, step, episodes)


def _begins_untrained(config: RunConfig) -> bool:
    return config.policy.path is None and not policy_spec(config).needs_demonstrations


def doubt_of_first(episodes: list[EpisodeReport], is_untrained: bool) -> str | None:
    """Return a doubt about the first evaluation of a run; None: there is none."""
    whole = [episode for episode in episodes if not episode.infra_fault]
    if len(whole) < MIN_DOUBTED:
        return None
    solved = all(episode.success for episode in whole)
    if all(episode.num_control_steps <= 1 for episode in whole):
        how = ", with success" if solved else ""
        return f"every episode of the first evaluation ends at its first control step{how}: look at the world's starts"
    if solved and is_untrained:
        return (
            f"every episode of the first evaluation is a success, all {len(whole)} of an untrained policy: "
            "look at the world's definition of success"
        )
    return None


def doubt_of_worker(episodes: Sequence[Sequence[EpisodeReport]]) -> str | None:
    """Return a sentence on the env worker whose success rate is beyond chance unlike its peers'; None: none is.

    episodes: by env rank; each has every n-th seed. Workers are compared only if all have the same tasks.
    """
    tasks = {frozenset(episode.instruction for episode in own) for own in episodes}
    if len(episodes) < 2 or len(tasks) > 1:
        return None
    rates = [np.array([float(episode.success) for episode in own]) for own in episodes]
    for rank, deviation in enumerate(all_deviations(rates)):
        others = [one for other, one in enumerate(rates) if other != rank]
        if abs(deviation) > SURE and all(abs(one) < ALIKE for one in all_deviations(others)):
            whose = "its peers" if len(others) > 1 else f"env/{1 - rank}"
            which = "its simulator" if len(others) > 1 else "one of the two simulators"
            return (
                f"env/{rank} reports {rates[rank].mean():.0%} successes in its {rates[rank].size} evaluation episodes, "
                f"and {whose} {np.concatenate(others).mean():.0%} ({abs(deviation):.1f} standard deviations): {which} "
                "may not do what it should"
            )
    return None


def evaluation_seeds(config: RunConfig) -> list[int]:
    """Return the reset seeds of an evaluation within a run."""
    first = config.evaluation.seed
    if config.checkpoint.best_on is SelectionStarts.test:
        first += TEST_SEEDS.start - VALIDATION_SEEDS.start
    return [first + i for i in range(config.evaluation.num_episodes)]


def run_episodes(
    session: Session, step: int, policy_version: int, seeds: list[int], has_video: bool
) -> list[EpisodeReport]:
    """Return the episodes of the seeds, void ones too, record their starts, and pass their video to the sinks.

    Warns of seeds that are left out. Raises RunError if all of them are.
    """
    num_videos = session.config.logging.video_episodes if has_video else 0
    with session.phase("evaluate", "env/evaluation_episodes", len(seeds)):
        parts = session.controller.evaluate(seeds, num_videos, policy_version)
        record_starts(session.run_dir, step, Purpose.evaluation, [start for part in parts for start in part.starts])
        _keep_video(session, step, [video for part in parts for video in part.videos])
        for reason in sorted({part.no_video for part in parts if part.no_video}):
            session.console.warning(f"no video: {reason}")
    _tell_left_out(session, len(seeds), [one for part in parts for one in part.left_out])
    if doubt := doubt_of_worker([part.episodes for part in parts]):
        session.console.warning(doubt)
    return [episode for part in parts for episode in (*part.episodes, *part.void)]


def _tell_left_out(session: Session, num_seeds: int, left_out: list[LeftOutEpisode]) -> None:
    """Warn of each seed that has no result. Raises RunError if no seed has one."""
    if left_out and len(left_out) == num_seeds:
        raise RunError(
            f"Each of the {num_seeds} evaluation episodes broke the simulator {left_out[0].num_attempts} times.",
            key="env",
            cause=str(left_out[0]),
            remedy="Run the world alone, `rlrun check-simulator`, and read the logs of the env workers.",
            exit_status=ExitStatus.worker_lost,
        )
    for episode in left_out:
        session.console.warning(f"{len(left_out)} of {num_seeds} episodes left out: {episode}")


def require_all(seeds: list[int], episodes: list[EpisodeReport]) -> None:
    """Raise RunError if a seed has no result, since it was left out."""
    missing = sorted(set(seeds) - {episode.seed for episode in episodes if not episode.infra_fault})
    if missing:
        raise RunError(
            f"{len(missing)} of {len(seeds)} episodes could not be finished, as that of seed {missing[0]}.",
            key="env",
            cause="each attempt at it broke the simulator, and a measurement without it would not follow its rule",
            remedy="The warning above and the logs of the env workers say how it breaks; mend the world.",
            exit_status=ExitStatus.worker_lost,
        )


def _keep_video(session: Session, step: int, videos: list[tuple[EpisodeReport, np.ndarray]]) -> None:
    """Pass the video to the sinks. A failure is a warning: an encoder or a tracker never ends a run."""
    if not videos:
        return
    videos = sorted(videos, key=lambda video: video[0].seed)  # so that two policies show equal starts in equal places
    try:
        frames = tile([Clip(shots, f"seed {episode.seed}", episode.success) for episode, shots in videos])
        session.sinks.video(step, "evaluation", frames, VIDEO_FPS)
    except Exception as failure:  # ffmpeg, a full disk, or a tracker
        session.console.warning(f"no video: {type(failure).__name__}: {failure}")


def record(session: Session, step: int, episodes: list[EpisodeReport]) -> EvaluationRecord:
    """Count the episodes, write the counts to the run folder, and return them."""
    summary = summarize_evaluation(step, episodes)
    record_evaluation(session.run_dir, summary)
    session.sinks.evaluation(summary)
    return summary


def record_world(session: Session) -> list[dict[str, str]]:
    """Write the fingerprints of the simulators to world.json, each different one once. Returns them.

    A resumed run keeps those of its former simulators.
    """
    env = provenance.as_tree(session.config)["env"]
    sources = {"sources": world_digest(env)}  # of the modules that `env` names
    reward = reward_digest(env)
    sources |= {"reward": reward} if reward else {}
    fingerprints = [
        dict(fingerprint)
        for fingerprint in {
            tuple(sorted((fingerprint | sources).items())) for fingerprint in session.controller.fingerprints()
        }
    ]
    place = session.run_dir / WORLD
    former = read_world(session.run_dir)
    if former and reward not in [fingerprint.get("reward") for fingerprint in former]:
        session.console.warning("env.reward or its source has changed: rewards before and after this start differ")
    kept = [fingerprint for fingerprint in former if fingerprint not in fingerprints]
    place.write_text(json.dumps({"fingerprints": [*kept, *sorted(fingerprints, key=str)]}, indent=2) + "\n")
    return fingerprints


def evaluate_alone(session: Session, policy: str) -> None:
    """Evaluate `policy`, a folder or the address of a policy server, and write evaluation.json."""
    config = session.config
    with session.phase("start"):
        session.controller.load_simulators()
        session.controller.load_rollout(policy, is_final=True)
    episodes = run_episodes(session, 0, 0, evaluation_seeds(config), has_video=True)
    summary = record(session, 0, episodes)
    instances = instance_results(config, episodes)
    content = asdict(summary) | ({"instances": [asdict(one) for one in instances]} if instances else {})
    if meaning := simulator_spec(config.env).evaluation.meaning_of_success(config.env):
        content["success_means"] = meaning
    if trained_on_test := simulator_spec(config.env).evaluation.splits(config.env).trained_on_test:
        content["trained_on_test"] = trained_on_test
    path = session.run_dir / "evaluation.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    session.console.result("\n".join([*instance_lines(instances), sentence(summary, config.env), str(path)]))


def instance_results(config: RunConfig, episodes: list[EpisodeReport]) -> list[InstanceResult]:
    """Return the results by BEHAVIOR instance; empty if episodes do not start from listed instances."""
    listed = simulator_spec(config.env).evaluation.listed_instances(config.env)
    return [] if listed is None else results_by_instance(episodes, listed, config.env.action_hz)


def instance_lines(results: list[InstanceResult]) -> list[str]:
    """Return text lines. Example: ["instance 303: success 0/1, q-score 0.67, 2000 steps (66.7 s)", …]."""
    lines = [
        f"instance {result.instance}: success {result.successes}/{result.episodes}, q-score {result.q_score:.2f}, "
        f"{result.simulator_steps:.0f} steps ({result.simulator_time_s:.1f} s)"
        for result in results
    ]
    mean = sum(result.q_score for result in results) / max(1, len(results))
    return [*lines, f"mean q-score over {len(results)} instances: {mean:.3f}"] if results else []


def sentence(record: EvaluationRecord, env: EnvConfig) -> str:
    """Return the result in words, with what stands on every number of this world.

    Example: success 58/64 = 91 % (95 % interval 81-96 %), mean return 1.31
    """
    trained_on_test = simulator_spec(env).evaluation.splits(env).trained_on_test
    return (
        f"success {record.successes}/{record.episodes} = {100 * record.success_rate:.0f} % "
        f"(95 % interval {100 * record.ci_low:.0f}-{100 * record.ci_high:.0f} %), mean return {record.mean_return:.4g}"
        + (f", {record.num_left_out} left out" if record.num_left_out else "")
        + (", on test starts" if record.is_on_test else "")
        + (f". {trained_on_test}" if trained_on_test else "")
    )
