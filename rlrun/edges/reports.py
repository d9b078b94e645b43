"""The edge from env workers to the driver: reports of episodes and tallies, and their check at the receiver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.edges.seeds import episode_seeds
from rlrun.edges.starts import EpisodeStart
from rlrun.edges.wrong_message import wrong_message

_MOST_DOUBLES = 0.01  # share of carried episodes that have the row and seed of another; by chance below 1e-6
_ROUNDING = 1e-5  # of float32 numbers and their sums, as a share


@dataclass(frozen=True, eq=False)
class EnvTally:
    """env -> driver: counts of one env worker's chunk steps in a training step, to compare with those of its peers.

    Example: EnvTally(num_chunk_steps=64, num_paid=5, num_moves=60, num_frozen=(0, 60), outside=0.02,
    instructions=("press …",)): the second camera showed the same picture for the whole step.
    """

    num_chunk_steps: int
    num_paid: int  # chunk steps with a reward other than 0
    num_moves: int  # chunk steps in which actions or proprioception changed and the episode went on
    num_frozen: tuple[int, ...]  # of these, by camera: its picture did not change
    outside: float  # share of the actions' numbers beyond their limits, before they were clipped
    instructions: tuple[str, ...]  # distinct sentences, sorted
    num_odd: int = 0  # chunk steps after which all pictures were of one colour, or one was noise
    num_moved_episodes: int = 0  # episodes that ended or were cut off, in which the robot moved in two chunks or more
    num_still: tuple[int, ...] = ()  # of these, by camera: no change after the first such chunk
    row_episodes: tuple[int, ...] = ()  # of these, by row; (): the robot has no state
    row_still: tuple[int, ...] = ()  # of these, by row: no number of the state changed
    reach: float = 1.0  # so far: largest way of a number of the state in an episode, as a share of its range
    used: float = 1.0  # so far: largest share of the actions' limits that an action used


@dataclass(frozen=True)
class GroupTally:
    """env -> driver: groups of one env worker in a training step, with algorithm.filter_groups.

    Example: GroupTally(num_gen_batches=3, num_groups=4, num_dropped=5, num_missing=1): of four groups, five collections
    had no signal, and one group had none in its last collection.
    """

    num_gen_batches: int  # collections of the group that was collected most often
    num_groups: int  # of the batch, over all rollout epochs
    num_dropped: int  # collections of a group that had no signal
    num_missing: int  # groups that are left out of the batch, since none of their collections had signal


def task_labels(episodes: Iterable[tuple[str, str]]) -> list[str]:
    """Return what each episode's task is called in tables.

    episodes: (task, instruction) of each; task: its name in the simulator, "" where the instruction is the task. A task
    that is told in several ways is called by the first.
    Example: [("libero_90:20", "turn on the stove")] -> ["turn on the stove (libero_90:20)"]
    """
    labels: dict[str, str] = {}
    keys = []
    for task, instruction in episodes:
        key = task or instruction
        labels.setdefault(key, f"{instruction} ({task})" if task else instruction)
        keys.append(key)
    return [labels[key] for key in keys]


@dataclass(frozen=True)
class EpisodeReport:
    """env -> driver: one finished episode.

    Example: EpisodeReport(env=3, seed=17, success=True, q_score=1.0, episode_return=1.8,
    num_control_steps=44, terminated=True, truncated=False, infra_fault=False)
    """

    env: int  # global index of the env
    seed: int  # reset seed
    success: bool
    q_score: float
    episode_return: float
    num_control_steps: int
    terminated: bool
    truncated: bool
    infra_fault: bool
    instruction: str = ""
    numbers: dict[str, float] = field(default_factory=dict)  # by metric: terms of an own reward, the world's info


@dataclass(frozen=True)
class LeftOutEpisode:
    """env -> driver: an evaluation episode without a result, since it was void in each of `num_attempts` attempts.

    Example: LeftOutEpisode(seed=123, num_attempts=3, fault="the simulation diverged")
    """

    seed: int  # reset seed
    num_attempts: int
    fault: str  # of the last attempt

    def __str__(self) -> str:
        return f"seed {self.seed} broke {self.num_attempts} times: {self.fault}"


@dataclass(frozen=True)
class WorkerLoss:
    """driver -> records: a worker that was lost and replaced.

    Example: WorkerLoss("env/1", "env/1.collect: its process ended: killed by SIGKILL", num_envs=4)
    """

    worker: str  # "role/rank"
    what: str
    num_envs: int  # rows whose running episode was lost with it; void, not failures


@dataclass(frozen=True)
class Collected:
    """env worker -> driver: the results of simulating one training step."""

    episodes: list[EpisodeReport]
    num_control_steps: int
    policy_version: int  # the oldest version that chose an action
    tally: EnvTally
    simulator_faults: tuple[str, ...] = ()  # after each one the simulator was restarted
    row_faults: tuple[str, ...] = ()  # each voided the episode of one row
    starts: list[EpisodeStart] = field(default_factory=list)  # of all episodes that began
    groups: GroupTally | None = None  # None: groups are not filtered
    num_valid: tuple[int, ...] = ()  # chunk steps to learn from that it sent, by actor rank with rows of it
    left_out: dict[str, str] = field(default_factory=dict)  # names in the world's info that are no metrics, and why


@dataclass(frozen=True, eq=False)
class Evaluated:
    """env worker -> driver: the evaluation episodes of its seeds: one finished episode each, unless it is left out."""

    episodes: list[EpisodeReport]
    void: list[EpisodeReport] = field(default_factory=list)  # each was repeated, or is the last one of its seed
    left_out: list[LeftOutEpisode] = field(default_factory=list)
    videos: list[tuple[EpisodeReport, np.ndarray]] = field(default_factory=list)  # uint8 [L, H, W, 3]
    no_video: str = ""  # why there are no videos, told once; "": there are, or none were asked for
    starts: list[EpisodeStart] = field(default_factory=list)  # of all episodes, in the order in which they began


class CollectedCheck:
    """Check of the env workers' reports of training steps.

    Seeds and numbers follow from the run, the step and the rank, so that the driver computes them as well.
    """

    def __init__(self, config: RunConfig, group_size: int, has_one_episode: bool):
        """group_size, has_one_episode: of the algorithm's rollout rule."""
        self._config = config
        self._group_size = group_size
        self._has_one_episode = has_one_episode

    def __call__(self, rank: int, step: int, report: Collected) -> None:
        """Raise RunError, naming the env worker, if its report of a training step cannot be right."""
        sender = f"env/{rank}"
        num_envs = self._config.env.num_envs // self._config.env.num_workers
        envs = np.arange(rank * num_envs, (rank + 1) * num_envs)
        check_episodes(sender, report.episodes, range(envs[0], envs[-1] + 1), None)
        self._check_returns(sender, report)
        self._check_seeds(sender, step, report, envs)
        self._check_counts(sender, report, num_envs)

    def _check_returns(self, sender: str, report: Collected) -> None:
        limit = self._config.env.max_abs_reward
        for episode in report.episodes:
            # a return is the sum of float32 rewards, each of which may be the limit, rounded up
            most = None if limit is None else limit * max(1, episode.num_control_steps) * (1 + _ROUNDING)
            if most is not None and abs(episode.episode_return) > most:
                what = f"it reported a return of {episode.episode_return:.3g}"
                cause = f"{episode.num_control_steps} control steps of at most {limit:g} (env.max_abs_reward)"
                raise wrong_message(sender, what, cause)

    def _check_seeds(self, sender: str, step: int, report: Collected, envs: np.ndarray) -> None:
        """Raise RunError unless each episode has a seed of this step and these rows, as often as the row has it.

        Two episodes of a row may have the same seed by chance. Carried episodes may have begun in any step, and rows
        count them through the run, so that any seed may be right.
        """
        algorithm = self._config.algorithm
        if algorithm.carry_episodes:
            _check_carried(sender, report)
            return
        ends = Counter((episode.env, episode.seed) for episode in report.episodes)
        most = algorithm.horizon + algorithm.filter_groups.max_num_gen_batches + 1  # episodes of a row in an epoch
        numbers = np.arange(most)[:, None]
        seeds = [
            episode_seeds(self._config.seed, step, epoch, envs // self._group_size, numbers)
            for epoch in range(algorithm.rollout_epochs)
        ]
        known = {
            row: Counter(column) for row, column in zip(envs.tolist(), np.concatenate(seeds).T.tolist(), strict=True)
        }
        strange = {start.seed for start in report.starts} - set().union(*known.values())
        strange |= {seed for env, seed in ends if seed not in known[env]}
        if strange:
            cause = f"such as {min(strange)}; those of its rows follow from the run's seed and step {step}"
            raise wrong_message(sender, "it reported episodes of other seeds than its own", cause)
        twice = [(env, seed) for (env, seed), count in ends.items() if count > known[env][seed]]
        if twice:
            env, seed = twice[0]
            raise wrong_message(sender, "it reported an episode twice", f"that of row {env} with seed {seed}")

    def _check_counts(self, sender: str, report: Collected, num_rows: int) -> None:
        """Raise RunError unless every chunk step without a fault is learned from."""
        algorithm = self._config.algorithm
        has_faults = report.simulator_faults or report.row_faults or any(one.infra_fault for one in report.episodes)
        if has_faults or algorithm.filter_groups.enable:
            return
        most = num_rows * algorithm.rollout_epochs * algorithm.horizon
        least = num_rows * algorithm.rollout_epochs if self._has_one_episode else most
        if not least <= sum(report.num_valid) <= most:
            what = f"it sent {sum(report.num_valid)} chunk steps to learn from, and had no fault"
            raise wrong_message(sender, what, f"at least {least} of {most} are needed")


def _check_carried(sender: str, report: Collected) -> None:
    """Raise RunError if more episodes were reported twice than can share a seed by chance."""
    num_doubles = len(report.episodes) - len({(episode.env, episode.seed) for episode in report.episodes})
    if num_doubles > max(1, _MOST_DOUBLES * len(report.episodes)):
        cause = f"{len(report.episodes)} reports of {len(report.episodes) - num_doubles}"
        raise wrong_message(sender, "it reported episodes twice", cause)


def check_episodes(
    sender: str,
    reports: Iterable[EpisodeReport],
    envs: range,
    seeds: Sequence[int] | None,
    left_out: Sequence[LeftOutEpisode] = (),
) -> None:
    """Raise RunError, naming the env worker, for invalid reports of episodes.

    envs: global indices of its rows. seeds: of the requested episodes; None: the worker chose them. left_out: those of
    them that have no report.
    """
    seen = [episode.seed for episode in left_out]
    for report in reports:
        seen.append(report.seed)
        numbers = (report.episode_return, report.q_score, *report.numbers.values())
        if not np.isfinite(numbers).all():
            what = "it reported an episode whose return, q-score or other number is NaN or infinite"
            raise wrong_message(sender, what, f"{report}")
        if report.env not in envs or report.num_control_steps < 0 or (report.terminated and report.truncated):
            raise wrong_message(
                sender, "it reported an episode that cannot be its own", f"{report}; its rows are {envs}"
            )
    if seeds is not None and sorted(seen) != sorted(seeds):
        cause = f"asked: {sorted(seeds)[:8]} …, reported: {sorted(seen)[:8]} …"
        raise wrong_message(sender, f"it reported {len(seen)} other episodes than the {len(seeds)} asked for", cause)


def check_starts(sender: str, starts: Sequence[EpisodeStart], seeds: Sequence[int]) -> None:
    """Raise RunError, naming the env worker, unless its episodes began from the seeds that it was asked for."""
    begun = {start.seed for start in starts}
    if begun != set(seeds):
        wrong = sorted(begun ^ set(seeds))
        cause = f"{len(wrong)} seeds differ, as {wrong[0]}"
        raise wrong_message(sender, "it began other episodes than those asked for", cause)
