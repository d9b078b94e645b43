"""Results by task instance. Instances are those of BEHAVIOR, whose challenge reports results by instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlrun.edges.reports import EpisodeReport


@dataclass(frozen=True)
class InstanceResult:
    """Results of all episodes of one task instance; infrastructure faults are not counted.

    Example: InstanceResult(303, episodes=1, successes=0, q_score=0.667, simulator_steps=2000.0, simulator_time_s=66.7)
    """

    instance: int
    episodes: int
    successes: int
    q_score: float  # mean, 0..1
    simulator_steps: float  # mean control steps of an episode
    simulator_time_s: float  # the same, in the simulator's seconds


def listed_instance(seed: int, ids: Sequence[int]) -> int:
    """Return the task instance of an episode with reset seed `seed`. Example: (4, [301, 302]) -> 301."""
    return ids[seed % len(ids)]


def results_by_instance(reports: Iterable[EpisodeReport], ids: Sequence[int], action_hz: int) -> list[InstanceResult]:
    """Return one result per instance with episodes, in the order of `ids`."""
    groups: dict[int, list[EpisodeReport]] = {instance: [] for instance in ids}
    for report in reports:
        if not report.infra_fault:
            groups[listed_instance(report.seed, ids)].append(report)
    results = []
    for instance, group in groups.items():
        if group:
            steps = sum(report.num_control_steps for report in group) / len(group)
            q_score = sum(report.q_score for report in group) / len(group)
            successes = sum(report.success for report in group)
            results.append(InstanceResult(instance, len(group), successes, q_score, steps, steps / action_hz))
    return results
