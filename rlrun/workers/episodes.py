"""The running episode of each row, and reports of finished episodes."""

from __future__ import annotations

import numpy as np

from rlrun.data.messages import ChunkResult, EpisodeReport


class EpisodeLedger:
    """Keeps per row: seed, return, length, and the chunk step of the epoch at which the episode started."""

    def __init__(self, envs: np.ndarray):
        self._envs = envs  # global env index of each row
        num_rows = len(envs)
        self.seeds = np.zeros(num_rows, np.int64)
        self.count = np.zeros(num_rows, np.int64)  # episodes started before the running one
        self.started_at = np.zeros(num_rows, int)
        self.reports: list[EpisodeReport] = []
        self.last: dict[int, EpisodeReport] = {}  # by row
        self._starts: list[int] = []  # started_at of each report
        self._return = np.zeros(num_rows)
        self.length = np.zeros(num_rows, int)

    def begin_epoch(self) -> None:
        """Begin a new epoch: running episodes continue, reports of the last epoch are dropped."""
        self.reports, self._starts = [], []
        self.started_at[:] = 0

    def start(self, rows: np.ndarray, chunk_step: int) -> None:
        """Begin a new episode in `rows`; the caller sets `seeds`."""
        self.count[rows] += 1
        self.started_at[rows] = chunk_step
        self._return[rows] = 0.0
        self.length[rows] = 0

    def add(self, result: ChunkResult) -> None:
        """Add the result of one chunk and report the episodes that it ended."""
        self._return += result.rewards.sum(axis=1)
        self.length += result.step_valid.sum(axis=1)
        for row in np.flatnonzero(result.ended).tolist():
            self.last[row] = EpisodeReport(
                env=int(self._envs[row]),
                seed=int(self.seeds[row]),
                success=bool(result.success[row]),
                q_score=float(result.q_score[row]),
                episode_return=float(self._return[row]),
                num_control_steps=int(self.length[row]),
                terminated=bool(result.terminated[row]),
                truncated=bool(result.truncated[row]),
                infra_fault=bool(result.infra_fault[row]),
            )
            self.reports.append(self.last[row])
            self._starts.append(int(self.started_at[row]))

    def countable(self, horizon: int, max_chunks: int) -> list[EpisodeReport]:
        """Return the reports of episodes that had enough time to reach their time limit.

        Episodes that start late in the epoch finish only if they are short, as successes are; counting them would raise
        the success rate. If no episode had enough time, all are returned.
        """
        roomy = [r for r, start in zip(self.reports, self._starts, strict=True) if start + max_chunks <= horizon]
        return roomy or self.reports
