"""Dynamic sampling: finds the groups of episodes from which an algorithm that compares them learns nothing.

Source: DAPO (arXiv 2503.14476, section 3.2), for episodes in place of answers: a group whose episodes all failed, or
all succeeded, has advantages of zero. It is collected again with new reset seeds.

Shape legend: R rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import AlgorithmConfig, FilterGroupsConfig, GroupMetric
from rlrun.edges.reports import EpisodeReport, GroupTally

LEAST_SPREAD = 1e-6  # of returns; a smaller one is rounding, as in `algorithms.advantages.group_advantages`


class GroupFilter:
    """The groups of one env worker, whose rows are whole groups.

    Example, for each rollout epoch::

        rows = group_filter.without_signal(reports, repetition=0)   # collect these again
        rows = group_filter.without_signal(more_reports, repetition=1)
        group_filter.leave_out(rows)
    """

    def __init__(self, config: FilterGroupsConfig, envs: np.ndarray, group_size: int):
        """envs: int [B], global indices of the rows; consecutive ones form a group."""
        self._config = config
        self._first_env = int(envs[0])
        self._group_size = group_size
        self._num_epoch_groups = len(envs) // group_size
        self._start()

    def _start(self) -> None:
        self._num_gen_batches = self._num_groups = self._num_dropped = self._num_missing = 0

    def without_signal(self, reports: Sequence[EpisodeReport], repetition: int) -> np.ndarray:
        """Return the rows, int [R] ascending, of those reported groups that have no signal.

        reports: all episodes of one collection, one per row. repetition: collections of the same rollout epoch before.
        """
        self._num_gen_batches = max(self._num_gen_batches, repetition + 1)
        self._num_groups += 0 if repetition else self._num_epoch_groups
        rows: list[int] = []
        for group in sorted({self._group_of(report) for report in reports}):
            own = [report for report in reports if self._group_of(report) == group]
            if not has_signal(own, self._config.metric):
                self._num_dropped += 1
                rows += range(group * self._group_size, (group + 1) * self._group_size)
        return np.array(rows, int)

    def leave_out(self, rows: np.ndarray) -> None:
        """Count the groups of `rows` (int [R]) as missing: they are not collected again."""
        self._num_missing += len(rows) // self._group_size

    def drain(self) -> GroupTally:
        """Return the tally since the last call."""
        tally = GroupTally(self._num_gen_batches, self._num_groups, self._num_dropped, self._num_missing)
        self._start()
        return tally

    def _group_of(self, report: EpisodeReport) -> int:
        return (report.env - self._first_env) // self._group_size


def has_signal(reports: Sequence[EpisodeReport], metric: GroupMetric) -> bool:
    """Return whether the episodes of a group that are not void differ in the metric."""
    is_success = metric is GroupMetric.success
    numbers = [float(one.success if is_success else one.episode_return) for one in reports if not one.infra_fault]
    return len(numbers) > 1 and max(numbers) - min(numbers) > LEAST_SPREAD


def signal_metrics(reports: Sequence[EpisodeReport], algorithm: AlgorithmConfig) -> dict[str, float]:
    """Return metrics of all groups that a training step collected; {} if the algorithm compares no episodes.

    Groups with signal are the batch if groups are filtered. reports: of all env workers.
    """
    rule = rollout_rule(algorithm)
    own = algorithm.filter_groups
    if not rule.one_episode or rule.group_size < 2 or not reports:
        return {}
    groups: dict[tuple[int, int], list[EpisodeReport]] = {}
    for report in reports:
        groups.setdefault((report.env // rule.group_size, report.seed), []).append(report)
    kept = [group for group in groups.values() if has_signal(group, own.metric)]
    metrics = {"groups_with_signal": len(kept) / len(groups)}
    learned = [report.success for group in kept for report in group if not report.infra_fault]
    if own.enable and learned:
        metrics["batch_success_rate"] = sum(learned) / len(learned)
    return metrics
