"""Warnings about a finished training step, from its metrics and the reports of its env workers.

A number alone may be as the world is, so env workers are compared with their peers, and with their own past. Nothing
here restarts a worker; only a simulator that breaks in step after step ends the run.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import Precision, RolloutBackendKind, RunConfig
from rlrun.data.messages import EpisodeReport
from rlrun.system.errors import ExitStatus, RunError
from rlrun.workers.env_worker import Collected

GAP_BOUND = {Precision.fp32: 1e-3, Precision.bf16: 0.1}  # of rollout_logprob_gap, by what both compute in
_GAP_OF_ONE = 1.0  # of a single chunk step in the first epoch, in which the policy itself moves
_FAR = 10.0  # times target_kl
_KL = 3.0  # without a target
_NUM_STEPS_IN_A_ROW = 3
_VOID_SHARE = 0.1
_EPISODES = 200  # newest ones of an env worker that are compared
_KEPT = 0.95  # share of the earlier chunk steps that a training step keeps in mind
_MIN_MOVES = 10  # before a camera is checked
_MIN_UNPAID = 50  # chunk steps; those of an episode are alike
_FROZEN, _MOVING = 0.75, 0.25  # shares of moves after which a camera shows what it showed before
_SURE = 5.5  # standard deviations; 4e-8 by chance
_APART = 0.9  # probability that an episode of one worker has more than one of its peers
_BY_CHANCE = 1e-6
_EVERY = 50  # steps between two equal warnings


@dataclass
class _Memory:
    """The history of an env worker."""

    tasks: tuple[str, ...] = ()  # sentences of the newest training step; only workers with equal ones are compared
    episodes: deque[EpisodeReport] = field(default_factory=lambda: deque(maxlen=_EPISODES))
    num_paid: tuple[int, int] = (0, 0)  # chunk steps: with a reward, all; older ones count less and less
    num_unpaid: int = 0  # chunk steps since the last one with a reward, by whole training steps
    before: tuple[int, int] = (0, 0)  # `num_paid` when they began
    num_moves: int = 0  # since its cameras were checked
    num_frozen: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # by camera
    frozen: tuple[float, ...] = ()  # shares when its cameras were checked last
    has_moved: set[int] = field(default_factory=set)  # cameras that have shown changes

    def add(self, report: Collected) -> None:
        """Remember a training step."""
        tally = report.tally
        self.tasks = tally.instructions
        self.episodes.extend(episode for episode in report.episodes if not episode.infra_fault)
        if not self.num_unpaid:
            self.before = self.num_paid
        self.num_unpaid = 0 if tally.num_paid else self.num_unpaid + tally.num_chunk_steps
        paid, count = self.num_paid
        self.num_paid = round(_KEPT * paid) + tally.num_paid, round(_KEPT * count) + tally.num_chunk_steps
        if tally.num_frozen:
            self.num_frozen = np.array(tally.num_frozen) + (self.num_frozen if self.num_frozen.size else 0)
        self.num_moves += tally.num_moves

    def check_cameras(self) -> bool:
        """Update `frozen`, if the robot has moved often enough. Returns whether it did."""
        if self.num_moves < _MIN_MOVES:
            return False
        self.frozen = tuple((self.num_frozen / self.num_moves).tolist())
        self.num_moves, self.num_frozen = 0, np.zeros(0, int)
        return True


class StepChecks:
    """Remembers the last steps.

    Example::

        for warning in checks.of(metrics, batch.reports): console.warning(warning)
    """

    def __init__(self, config: RunConfig):
        self._config = config
        self._group_size = rollout_rule(config.algorithm).group_size
        self._without_steps = self._with_voids = 0  # training steps in a row
        self._memory: dict[int, _Memory] = {}  # by env rank
        self._step = 0
        self._said: dict[str, int] = {}  # step of the last warning of a kind

    def check(self, metrics: Mapping[str, float], reports: Sequence[Collected]) -> list[str]:
        """Return the warnings of a step, most of them once in a while. reports: by env rank.

        Raises RunError if more than a tenth of the episodes were void in three steps in a row.
        """
        self._step += 1
        for rank, report in enumerate(reports):
            self._memory.setdefault(rank, _Memory()).add(report)
        found = [*self._of_update(metrics), *self._of_pictures(), *self._of_rewards(), *self._of_episodes(reports)]
        self._check_voids(reports)
        said = [text for kind, text in found if self._step - self._said.get(kind, -_EVERY) >= _EVERY]
        self._said |= dict.fromkeys((kind for kind, text in found if text in said), self._step)
        return said

    # --- the update -------------------------------------------------------------------------

    def _of_update(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Yield (kind, sentence)."""
        gap, largest = metrics.get("rollout_logprob_gap", 0.0), metrics.get("rollout_logprob_gap_max", 0.0)
        worker = f"rollout/{int(metrics.get('rollout_logprob_gap_worker', 0))}"
        is_old = metrics.get("policy_age", 0.0) > 0  # then the policies do differ
        if gap > self._gap_bound and not is_old:
            yield (
                "gap",
                f"{worker} and the actor differ by {gap:.3g} in the log-probabilities of the same actions, where at "
                f"most {self._gap_bound:g} is rounding: that worker may act with other weights, or for other "
                "observations, than it says",
            )
        elif largest > _GAP_OF_ONE and not is_old:
            yield (
                "gap of one",
                f"{worker} and the actor differ by {largest:.3g} in the log-probabilities of a single chunk step: an "
                "answer may have been changed, or exchanged",
            )
        has_no_groups = metrics.get("num_groups", 0.0) > 0 and metrics["num_missing_groups"] == metrics["num_groups"]
        if has_no_groups:
            yield (
                "no groups",
                f"nothing was learned in this step: in each of {metrics['num_groups']:.0f} groups all episodes had the "
                f"same {self._config.algorithm.filter_groups.metric.value}, in {metrics['num_gen_batches']:.0f} "
                "collections (algorithm.filter_groups): take a first policy with which some episodes succeed",
            )
        is_on_policy = "is_kl_stopped" in metrics  # others may only collect at first
        is_idle = is_on_policy and metrics.get("num_optimizer_steps") == 0 and not has_no_groups
        self._without_steps = self._without_steps + 1 if is_idle else 0
        if self._without_steps >= _NUM_STEPS_IN_A_ROW:
            kl = metrics.get("approx_kl", math.nan)
            yield (
                "no steps",
                f"nothing is learned: {self._without_steps} training steps in a row took no optimizer step (approx_kl "
                f"{kl:.3g}, target_kl {self._config.algorithm.target_kl}): raise algorithm.target_kl, or see why the "
                "policies of rollout and actor differ",
            )
        target = self._config.algorithm.target_kl
        limit = _KL if target is None else _FAR * target
        moved = max(metrics.get("kl_k3", 0.0), abs(metrics.get("approx_kl", 0.0)))
        if moved > limit:
            yield "kl", f"the policy moved by a KL of {moved:.3g} in one update, more than {limit:g}: lower actor.lr"

    @property
    def _gap_bound(self) -> float:
        config = self._config
        is_exact = config.rollout.backend is RolloutBackendKind.hf and config.rollout.precision is Precision.fp32
        is_exact = is_exact and config.actor.param_precision is Precision.fp32
        return GAP_BOUND[Precision.fp32 if is_exact else Precision.bf16]

    # --- the simulators ---------------------------------------------------------------------

    def _check_voids(self, reports: Sequence[Collected]) -> None:
        episodes = [episode for report in reports for episode in report.episodes]
        num_void = sum(episode.infra_fault for episode in episodes)
        is_bad = num_void > _VOID_SHARE * len(episodes)
        self._with_voids = self._with_voids + 1 if is_bad else 0
        if self._with_voids < _NUM_STEPS_IN_A_ROW:
            return
        faults = [f"env/{rank}: {text}" for rank, one in enumerate(reports) for text in _faults(one)]
        raise RunError(
            f"The simulators break too often: {num_void} of {len(episodes)} episodes were void, and more than "
            f"{_VOID_SHARE:.0%} in each of the last {self._with_voids} training steps.",
            key="env.simulator",
            value=self._config.env.simulator,
            cause="\n".join(faults[:8]) or "the workers' logs have the reasons",
            remedy="Mend the simulator, or leave out the tasks and seeds that break it: the episodes that are left are "
            "a part of the world.",
            exit_status=ExitStatus.worker_lost,
        )

    def _of_pictures(self) -> Iterator[tuple[str, str]]:
        """Yield a warning for cameras that show no change while the robot moves, unlike before, or unlike their peers.

        A camera that never showed a change, on any worker, may look at a wall; all cameras of a worker do not.
        """
        for rank, own in self._memory.items():
            num_moves = own.num_moves
            if not own.check_cameras():
                continue
            others = [other.frozen for peer, other in self._memory.items() if peer != rank]
            for camera, share in enumerate(own.frozen):
                is_moving = any(len(other) > camera and other[camera] < _MOVING for other in others)
                if share > _FROZEN and (is_moving or camera in own.has_moved or min(own.frozen) > _FROZEN):
                    yield (
                        f"frozen {rank} {camera}",
                        f"camera {camera} of env/{rank} shows the same picture in {share:.0%} of {num_moves} chunk "
                        "steps in which the robot was told to move: it may be frozen",
                    )
                if share < _MOVING:
                    own.has_moved.add(camera)

    def _of_rewards(self) -> Iterator[tuple[str, str]]:
        """Yield a warning for env workers that pay no reward at all, unlike their peers, or unlike before."""
        for rank, own in self._memory.items():
            peers = self._peers(rank)
            others = [self._memory[peer].num_paid for peer in peers] or [own.before]
            # the median, since one of the peers may be the one that lies
            usual = statistics.median(paid / (count + 2) for paid, count in others)
            by_chance = (1 - usual) ** (own.num_unpaid / self._group_size)
            if own.num_unpaid >= _MIN_UNPAID and by_chance < _BY_CHANCE:
                whose = "those of its peers" if peers else "those before"
                yield (
                    f"unpaid {rank}",
                    f"env/{rank} paid no reward in its last {own.num_unpaid} chunk steps, and in {usual:.0%} of "
                    f"{whose}: its simulator may not judge what happens",
                )

    def _of_episodes(self, reports: Sequence[Collected]) -> Iterator[tuple[str, str]]:
        """Yield warnings for env workers whose episodes end unlike those of their peers with the same tasks."""
        limit = self._config.env.max_control_steps
        for rank, report in enumerate(reports):
            longest = max((episode.num_control_steps for episode in report.episodes), default=0)
            if longest > limit:
                text = f"an episode of env/{rank} took {longest} control steps, and env.max_control_steps is {limit}"
                yield f"long {rank}", f"{text}: its simulator does not end episodes in time"
            yield from self._constant(rank, self._peers(rank))
            yield from self._unlike(rank, self._peers(rank))

    def _peers(self, rank: int) -> list[int]:
        """Return the other env workers with the same tasks."""
        tasks = self._memory[rank].tasks
        return [peer for peer, other in self._memory.items() if peer != rank and other.tasks == tasks]

    def _remembered(self, ranks: Sequence[int]) -> list[EpisodeReport]:
        return [episode for rank in ranks for episode in self._memory[rank].episodes]

    def _unlike(self, rank: int, peers: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Yield a warning for each number of an env worker's episodes that is far from its peers'."""
        if len(peers) == 1 and rank < peers[0]:
            return  # two workers differ from each other, which is said once
        for name, what in _COMPARED.items():
            own, others = (self._numbers(name, ranks) for ranks in ([rank], peers))
            if own.size and others.size and differs(own, others, self._group_size):
                whose = f"those of env/{peers[0]}" if len(peers) == 1 else "those of its peers"
                which = "one of the two simulators" if len(peers) == 1 else "its simulator"
                here = f"{own.mean():.3g} in its last {own.size} episodes"
                yield (
                    f"{name} {rank}",
                    f"{what} of env/{rank} is {here}, and {others.mean():.3g} in {whose} with the same task: "
                    f"{which} may not do what it should",
                )

    def _constant(self, rank: int, peers: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Yield a warning if all episodes of an env worker are the same in a number that varies elsewhere."""
        for name, what in _CONSTANT.items():
            own = self._numbers(name, [rank])
            if not peers or not own.size or (own != own[0]).any():
                continue
            others = [self._numbers(name, [peer]) for peer in peers]
            # the median, since one of the peers may be the one that lies
            share = statistics.median((float((one == own[0]).sum()) + 1) / (one.size + 2) for one in others)
            if share ** (own.size / self._group_size) < _BY_CHANCE:
                yield (
                    f"constant {name} {rank}",
                    f"{what} of env/{rank} was {own[0]:g} in each of its last {own.size} episodes, and another in "
                    f"{1 - share:.0%} of those of its peers: its simulator may not do what it should",
                )

    def _numbers(self, name: str, ranks: Sequence[int]) -> np.ndarray:
        return np.array([float(getattr(episode, name)) for episode in self._remembered(ranks)])


_CONSTANT = {"episode_return": "the return", "num_control_steps": "the length"}
_COMPARED = {"success": "the success rate", "episode_return": "the mean return", "num_control_steps": "the mean length"}


def differs(own: np.ndarray, others: np.ndarray, group_size: int = 1) -> bool:
    """Return whether the numbers of one worker are beyond chance and far from its peers' (Mann-Whitney, with ties).

    group_size: episodes with equal starts, which count as one.
    """
    both = np.concatenate([own, others])
    _, index, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]  # equal numbers share the mean of their ranks
    num_own, num_others, total = own.size, others.size, both.size
    more = (ranks[:num_own].sum() - num_own * (num_own + 1) / 2) / (num_own * num_others)  # probability of a larger one
    ties = 1 - float((counts.astype(float) ** 3 - counts).sum()) / max(1, total**3 - total)
    deviation = math.sqrt(max(1e-12, ties) * (total + 1) / (12 * num_own * num_others))
    is_apart = more >= _APART or more <= 1 - _APART
    return bool(is_apart and abs(more - 0.5) / deviation / math.sqrt(group_size) > _SURE)


def _faults(report: Collected) -> tuple[str, ...]:
    return (*report.simulator_faults, *report.row_faults)
