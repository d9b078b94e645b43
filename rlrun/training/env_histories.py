"""Histories of env workers, and what comparisons of them share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from rlrun.edges.reports import Collected, EnvTally, EpisodeReport
from rlrun.training.significance import all_deviations, chance_of_none

NUM_EPISODES = 200  # newest ones of an env worker that are compared
NUM_STEPS = 100  # newest ones whose cameras are compared
BY_CHANCE = 1e-8


@dataclass
class EnvHistory:
    """The newest episodes and counts of an env worker."""

    tasks: set[str] = field(default_factory=set)  # all sentences; only workers with equal ones are compared
    num_strange: int = 0  # steps in a row in which it had another sentence than all of its peers ever had
    episodes: deque[tuple[int, EpisodeReport]] = field(default_factory=lambda: deque(maxlen=NUM_EPISODES))  # with steps
    starts: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_EPISODES))  # digests of first observations
    states: deque[np.ndarray] = field(default_factory=lambda: deque(maxlen=NUM_EPISODES))  # first ones, float32 [P]
    still_rows: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # row -> still in a row, still, episodes
    tallies: deque[tuple[int, EnvTally]] = field(default_factory=lambda: deque(maxlen=NUM_STEPS))  # with steps
    num_chunk_steps: int = 0
    num_odd: int = 0
    # of its past until the last step in which an episode had a return, and of the episodes since
    num_before: int = 0
    num_paid: int = 0
    sum_of_returns: float = 0.0
    num_since: int = 0
    last_paid: int = 0  # that step; 0: none was

    def add(self, step: int, report: Collected) -> None:
        """Remember a training step."""
        self.tasks |= set(report.tally.instructions)
        self.episodes.extend((step, episode) for episode in report.episodes if not episode.infra_fault)
        self.starts.extend(start.digest for start in report.starts)
        self.states.extend(start.state for start in report.starts if start.state is not None)
        self.tallies.append((step, report.tally))
        self._count_still(report.tally)
        self.num_chunk_steps += report.tally.num_chunk_steps
        self.num_odd += report.tally.num_odd
        self._count_paid(step, [finished.episode_return for finished in report.episodes if not finished.infra_fault])

    def _count_still(self, tally: EnvTally) -> None:
        for row, (still, episodes) in enumerate(zip(tally.row_still, tally.row_episodes, strict=True)):
            streak, before, total = self.still_rows.get(row, (0, 0, 0))
            streak = streak + still if still == episodes else 0
            self.still_rows[row] = streak, before + still, total + episodes

    def _count_paid(self, step: int, returns: Sequence[float]) -> None:
        num_paid = sum(map(bool, returns))
        self.num_since += len(returns)
        self.num_paid += num_paid
        self.sum_of_returns += sum(returns)
        if num_paid:
            self.num_before = self.num_before + self.num_since
            self.num_since = 0
            self.last_paid = step

    def is_unpaid(self, step: int, group_size: int) -> bool:
        """Return whether its episodes have no return any more, beyond chance by its own past.

        A group of one start counts as one episode, and all of a step's that begin alike, since one policy acts in them.
        Returns that were negative may end because the policy is good now, unless each episode had one.
        """
        if not self.num_paid or (self.sum_of_returns <= 0 and self.num_paid < self.num_before):
            return False
        num_starts = max(1, len(set(self.starts)))
        independent = min(self.num_since / group_size, num_starts * (step - self.last_paid))
        part = independent / max(1, self.num_since)
        # The past ends at an episode with a return by its definition, so that this one is not counted.
        paid = part * (self.num_paid - 1)
        unpaid = part * (self.num_before - self.num_paid)
        return chance_of_none(paid, unpaid, independent) < BY_CHANCE

    def numbers(self, name: str, since: int = 0) -> np.ndarray:
        """Return a number of each episode that ended in step `since` or later; `paid`: of those with a return."""
        chosen = [episode for step, episode in self.episodes if step >= since]
        if name == "paid":
            chosen = [episode for episode in chosen if episode.episode_return]
            name = "episode_return"
        return np.array([float(getattr(episode, name)) for episode in chosen])

    def still(self, camera: int, since: int, until: int) -> tuple[int, int]:
        """Return the number of episodes that ended in since..until without a change in a camera, and of all of them."""
        tallies = [tally for step, tally in self.tallies if since <= step <= until and len(tally.num_still) > camera]
        return sum(tally.num_still[camera] for tally in tallies), sum(tally.num_moved_episodes for tally in tallies)


class ComparedHistories:
    """Histories of env workers that are compared after a step, in the order of ranks.

    What all comparisons need is computed once: without that, the driver's time for a check would grow with the square
    or the cube of the number of workers.
    """

    def __init__(self, memories: Mapping[int, EnvHistory]):
        self._memories = memories
        self.at = {rank: at for at, rank in enumerate(memories)}
        self.numbers = cache(self._numbers)
        self.varied = cache(self._varied)
        self.shares = cache(self._shares)
        self.deviations = cache(self._deviations)
        self.still_shares = cache(self._still_shares)

    def peers(self, rank: int) -> list[int]:
        """Return the others."""
        return [peer for peer in self._memories if peer != rank]

    def median_of_peers(self, rank: int, values: np.ndarray) -> float:
        """Return the median of the others' values: one of them may be the one that lies."""
        return float(np.median(np.delete(values, self.at[rank])))

    def vary(self, rank: int, name: str, since: int) -> bool:
        """Return whether a number varies within most of the others, so that episodes are no repetitions of one."""
        return self.median_of_peers(rank, self.varied(name, since)) > 0.5

    @cached_property
    def since(self) -> int:
        """The step from which on all of them are known."""
        return max((memory.episodes[0][0] for memory in self._memories.values() if memory.episodes), default=0)

    @cached_property
    def states(self) -> list[np.ndarray]:
        """The newest first states of each, float32 [R, P]; []: the simulators have none."""
        held = [np.array(one.states) for one in self._memories.values()]
        return held if all(one.ndim == 2 and one.shape[1] for one in held) else []

    @cached_property
    def start_deviations(self) -> dict[int, list[float]]:
        """Number of the state -> how far the first ones of each are from the others', if they vary; as deviations."""
        if not self.states or not all(map(len, self.states)):
            return {}
        varied = np.flatnonzero(np.ptp(np.concatenate(self.states), axis=0) > 0)
        return {int(number): all_deviations([one[:, number] for one in self.states]) for number in varied}

    @cached_property
    def num_owners(self) -> Counter[str]:
        """Digest of a start -> number of workers that had it."""
        return Counter(start for memory in self._memories.values() for start in set(memory.starts))

    def _numbers(self, name: str, since: int) -> list[np.ndarray]:
        return [memory.numbers(name, since) for memory in self._memories.values()]

    def _varied(self, name: str, since: int) -> np.ndarray:
        return np.array([float(len(np.unique(values)) > 1) for values in self.numbers(name, since)])

    def _shares(self, name: str, since: int, value: float) -> np.ndarray:
        """Return the share of episodes with a value, by the rule of succession."""
        return np.array([((values == value).sum() + 1) / (values.size + 2) for values in self.numbers(name, since)])

    def _deviations(self, name: str) -> list[float]:
        return all_deviations(self.numbers(name, self.since))

    def _still_shares(self, camera: int, since: int, until: int) -> np.ndarray:
        counts = [memory.still(camera, since, until) for memory in self._memories.values()]
        return np.array([(still + 1) / (total + 2) for still, total in counts])
