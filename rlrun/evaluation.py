"""Episodes over fixed seeds: success rate, confidence interval, video."""

from __future__ import annotations

from rlrun.observability.records import EvaluationRecord, record_evaluation, summarize_evaluation
from rlrun.observability.video import Clip, tile
from rlrun.session import Session

VIDEO_FPS = 8.0  # one picture per chunk; slower than life where chunks are short


def evaluate(session: Session, step: int, is_filmed: bool) -> EvaluationRecord:
    """Run `evaluation.num_episodes` episodes with the policy that the rollout workers hold, and record them."""
    config = session.config.evaluation
    seeds = [config.seed + i for i in range(config.num_episodes)]
    num_videos = session.config.logging.video_episodes if is_filmed else 0
    with session.phase("evaluate", "env/evaluation_episodes", config.num_episodes):
        parts = session.team.evaluate(seeds, num_videos)
    record = summarize_evaluation(step, [episode for part in parts for episode in part.episodes])
    record_evaluation(session.run_dir, record)
    videos = [video for part in parts for video in part.videos]
    if videos:
        frames = tile([Clip(shots, f"seed {episode.seed}", episode.success) for episode, shots in videos])
        session.sinks.video(step, "evaluation", frames, VIDEO_FPS)
    return record


def sentence(record: EvaluationRecord) -> str:
    """Example: success 58/64 = 91 % (95 % interval 81-96 %)."""
    return (
        f"success {record.successes}/{record.episodes} = {100 * record.success_rate:.0f} % "
        f"(95 % interval {100 * record.ci_low:.0f}-{100 * record.ci_high:.0f} %)"
    )
