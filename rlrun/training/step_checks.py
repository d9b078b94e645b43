"""Warnings about a finished training step, from its metrics and the reports of its env workers.

A number alone may be as the world is, so env workers are compared with their peers, by independent episodes. Facts
about all workers name no worker. Nothing here restarts a worker; only a simulator that breaks in step after step ends
the run.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import RunConfig
from rlrun.edges.reports import Collected, EnvTally
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.env_histories import BY_CHANCE, NUM_EPISODES, ComparedHistories, EnvHistory
from rlrun.training.significance import ALIKE, SURE, all_deviations
from rlrun.training.update_checks import NUM_STEPS_IN_A_ROW, UpdateChecks
from rlrun.watchdog.diagnosis import format_workers
from rlrun.workers.world_facts import WorldFacts

_VOID_SHARE = 0.1
_EVERY = 50  # steps between two equal warnings
_EVERY_STARTS = 10  # steps between two comparisons of first states
# before a fact is told
_FACT_EPISODES = 100
_FACT_CHUNK_STEPS = 200
_FACT_STEPS = 5
_CONSTANT = {"episode_return": "the return", "num_control_steps": "the length"}
_COMPARED = {
    "success": "the success rate",
    "episode_return": "the mean return",
    "paid": "the mean return other than 0",
    "num_control_steps": "the mean length",
}


class StepChecks:
    """Remembers the last steps.

    Example::

        for warning in checks.check(metrics, batch.reports): console.warning(warning)
    """

    def __init__(self, config: RunConfig):
        self._config = config
        self._group_size = rollout_rule(config.algorithm).group_size
        self._with_voids = 0  # training steps in a row
        self._update = UpdateChecks(config)
        self._memory: dict[int, EnvHistory] = {}  # by env rank
        self._step = 0
        self._said: dict[str, int] = {}  # step of the last warning of a kind
        self._world = WorldFacts(_FACT_EPISODES, _FACT_CHUNK_STEPS)
        self._reset_shares: deque[float] = deque(maxlen=_FACT_STEPS)

    def check(self, metrics: Mapping[str, float], reports: Sequence[Collected]) -> list[str]:
        """Return the warnings of a step, most of them once in a while. reports: by env rank.

        Raises RunError if more than a tenth of the episodes were void in three steps in a row.
        """
        self._step += 1
        for rank, report in enumerate(reports):
            self._memory.setdefault(rank, EnvHistory()).add(self._step, report)
        found = list(self._update.check(metrics, sum(sum(report.num_valid) for report in reports)))
        found += [*self._of_pictures(), *self._of_rows(), *self._of_episodes(reports), *self._of_tasks(reports)]
        once = [*self._facts(metrics, reports), *self._update.of_own_error(metrics)]
        found += [(kind, text) for kind, text in once if kind not in self._said]
        self._check_voids(reports)
        said = [text for kind, text in found if self._step - self._said.get(kind, -_EVERY) >= _EVERY]
        self._said |= dict.fromkeys((kind for kind, text in found if text in said), self._step)
        return said

    # --- the simulators ---------------------------------------------------------------------

    def _check_voids(self, reports: Sequence[Collected]) -> None:
        episodes = [episode for report in reports for episode in report.episodes]
        num_void = sum(episode.infra_fault for episode in episodes)
        is_bad = num_void > _VOID_SHARE * len(episodes)
        self._with_voids = self._with_voids + 1 if is_bad else 0
        if self._with_voids < NUM_STEPS_IN_A_ROW:
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
        """Yield a warning for cameras without a change in whole episodes, unlike the peers', or unlike before."""
        everyone = ComparedHistories(self._memory)
        for rank, own in self._memory.items():
            newest = own.tallies[-1][1]
            peers = everyone.peers(rank)
            for camera in range(len(newest.num_still)):
                moving = [step for step, one in own.tallies if _has_changed(one, camera)]
                if not (peers or moving):
                    continue  # there is nothing to compare with
                since = max(moving, default=0) + 1
                _, count = own.still(camera, since, self._step)
                if peers:
                    share = everyone.median_of_peers(rank, everyone.still_shares(camera, since, self._step))
                else:
                    share = float(everyone.still_shares(camera, 0, since - 1)[0])
                if share ** self._independent(rank, everyone, count) < BY_CHANCE:
                    whose = "those of its peers" if peers else "those before"
                    yield (
                        f"frozen {rank} {camera}",
                        f"camera {camera} of env/{rank} showed the same picture after the first chunk of each of its "
                        f"last {count} episodes, and in {share:.0%} of {whose}, while the robot moved: it may hang",
                    )
            if own.num_odd == own.num_chunk_steps >= _FACT_CHUNK_STEPS and f"odd {rank}" not in self._said:
                yield (
                    f"odd {rank}",
                    f"all pictures of env/{rank} in {own.num_chunk_steps} chunk steps were of one colour, or noise: "
                    "see whether its simulator renders",
                )

    def _of_rows(self) -> Iterator[tuple[str, str]]:
        """Yield a warning for rows whose robot does not move in whole episodes, unlike that of the other rows."""
        everyone = ComparedHistories(self._memory)
        all_still = sum(still for own in self._memory.values() for _, still, _ in own.still_rows.values())
        all_episodes = sum(total for own in self._memory.values() for _, _, total in own.still_rows.values())
        for rank, own in self._memory.items():
            for row, (streak, still, total) in own.still_rows.items():
                others = (all_still - still + 1) / (all_episodes - total + 2)
                if all_episodes > total and others ** self._independent(rank, everyone, streak) < BY_CHANCE:
                    yield (
                        f"still {rank} {row}",
                        f"no number of the state of row {row} of env/{rank} changed in its last {streak} episodes, and "
                        f"in {others:.0%} of those of the other rows: it may hang",
                    )

    def _of_starts(self, rank: int, group: ComparedHistories) -> Iterator[tuple[str, str]]:
        """Yield a warning if the first states of an env worker's episodes are beyond chance unlike its peers'."""
        peers = group.peers(rank)
        if self._step % _EVERY_STARTS or (len(peers) == 1 and rank < peers[0]):
            return
        at = group.at[rank]
        for number, deviations in group.start_deviations.items():
            columns = [states[:, number] for states in group.states]
            others = columns[:at] + columns[at + 1 :]
            sure = abs(deviations[at]) * math.sqrt(self._independent(rank, group, len(columns[at])) / len(columns[at]))
            if sure > SURE and all(abs(one) < ALIKE for one in all_deviations(others)):
                whose, which = _blamed(peers)
                yield (
                    f"starts {min(rank, *peers) if len(peers) == 1 else rank}",
                    f"number {number} of the state is {columns[at].mean():.3g} when episodes of env/{rank} begin, and "
                    f"{np.concatenate(others).mean():.3g} in {whose} ({sure:.1f} standard deviations): {which} may not "
                    "do what it should",
                )
                return

    def _independent(self, rank: int, group: ComparedHistories, count: int) -> float:
        """Return how many of `count` episodes are independent: those of a start that no peer has count as one."""
        own = set(self._memory[rank].starts)
        is_shared = all(group.num_owners[start] > 1 for start in own)
        independent = count / self._group_size
        return independent if is_shared else min(independent, len(own))

    def _of_tasks(self, reports: Sequence[Collected]) -> Iterator[tuple[str, str]]:
        """Yield a warning for an env worker that alone has another sentence than the only one of all its peers."""
        for rank, report in enumerate(reports):
            own = self._memory[rank]
            others = [self._memory[peer].tasks for peer in self._memory if peer != rank]
            usual = others[0] if others else set()
            is_strange = len(usual) == 1 and all(tasks == usual for tasks in others)
            is_strange = is_strange and bool(report.tally.instructions) and not usual & set(report.tally.instructions)
            own.num_strange = own.num_strange + 1 if is_strange else 0
            # two halves of the workers may have a task each, unless this one had the other's before
            if own.num_strange >= NUM_STEPS_IN_A_ROW and (own.tasks & usual or len(others) > 2):
                yield (
                    f"task {rank}",
                    f'env/{rank} has the task "{report.tally.instructions[0]}", and each other env worker only '
                    f'"{next(iter(usual))}": it is not compared with them',
                )

    def _of_episodes(self, reports: Sequence[Collected]) -> Iterator[tuple[str, str]]:
        """Yield warnings for env workers whose episodes end unlike those of their peers with the same tasks."""
        limit = self._config.env.max_control_steps
        by_tasks: dict[frozenset[str], dict[int, EnvHistory]] = defaultdict(dict)
        for rank, own in self._memory.items():
            by_tasks[frozenset(own.tasks)][rank] = own
        groups = {tasks: ComparedHistories(memories) for tasks, memories in by_tasks.items()}
        yield from self._unpaid(by_tasks.values())
        for rank, report in enumerate(reports):
            longest = max((episode.num_control_steps for episode in report.episodes), default=0)
            if longest > limit:
                text = f"an episode of env/{rank} took {longest} control steps, and env.max_control_steps is {limit}"
                yield f"long {rank}", f"{text}: its simulator does not end episodes in time"
            group = groups[frozenset(self._memory[rank].tasks)]
            if group.peers(rank):
                yield from self._constant(rank, group)
                yield from self._unlike(rank, group)
                yield from self._of_starts(rank, group)

    def _unpaid(self, groups: Iterable[Mapping[int, EnvHistory]]) -> Iterator[tuple[str, str]]:
        """Yield a warning for workers of a task whose episodes have all lost their returns: no peer could show it."""
        for group in groups:
            if not all(one.is_unpaid(self._step, self._group_size) for one in group.values()):
                continue
            names = format_workers([f"env/{rank}" for rank in group])
            before = sum(one.num_before for one in group.values())
            since = sum(one.num_since for one in group.values())
            paid = sum(one.num_paid for one in group.values())
            was_cost = sum(one.sum_of_returns for one in group.values()) <= 0
            other = "now avoids what cost each of them" if was_cost else "has lost what it could"
            yield (
                f"unpaid {names}",
                f"the last {since} episodes of {names} had no reward, and {paid / before:.0%} of the {before} before "
                f"had one: the simulator may pay none any more, or the policy {other}",
            )

    def _unlike(self, rank: int, group: ComparedHistories) -> Iterator[tuple[str, str]]:
        """Yield a warning for each number of an env worker's episodes that is beyond chance unlike its peers'."""
        peers = group.peers(rank)
        if len(peers) == 1 and rank < peers[0]:
            return  # two workers differ from each other, which is said once
        if not group.vary(rank, "episode_return", group.since) and not group.vary(
            rank, "num_control_steps", group.since
        ):
            return  # each may repeat one start of its own
        for name, what in _COMPARED.items():
            own = group.numbers(name, group.since)[group.at[rank]]
            sure = abs(group.deviations(name)[group.at[rank]])
            sure *= math.sqrt(self._independent(rank, group, own.size) / max(1, own.size))
            if sure <= SURE:
                continue
            others = [group.numbers(name, group.since)[group.at[peer]] for peer in peers]
            if all(abs(one) < ALIKE for one in all_deviations(others)):
                whose, which = _blamed(peers)
                here = f"{own.mean():.3g} in its last {own.size} episodes"
                yield (
                    f"{name} {rank}",
                    f"{what} of env/{rank} is {here}, and {np.concatenate(others).mean():.3g} in {whose} with the same "
                    f"task ({sure:.1f} standard deviations): {which} may not do what it should",
                )

    def _constant(self, rank: int, group: ComparedHistories) -> Iterator[tuple[str, str]]:
        """Yield a warning if the newest episodes of an env worker are equal in a number that varies on its peers."""
        for name, what in _CONSTANT.items():
            own = group.numbers(name, 0)[group.at[rank]]
            if not own.size:
                continue
            last = float(own[-1])
            count = own.size - int(np.flatnonzero(own != last).max(initial=-1)) - 1
            independent = self._independent(rank, group, count)
            if (1 / (NUM_EPISODES + 2)) ** independent >= BY_CHANCE:
                continue  # no peers could make that strange
            since = self._memory[rank].episodes[-count][0]
            if not group.vary(rank, name, since):
                continue
            share = group.median_of_peers(rank, group.shares(name, since, last))
            if share**independent < BY_CHANCE:
                peers = group.peers(rank)
                whose, which = _blamed(peers)
                about = min(rank, *peers) if len(peers) == 1 else rank  # of two workers, one sentence for both
                yield (
                    f"constant {name} {about}",
                    f"{what} of env/{rank} was {last:g} in each of its last {count} episodes, and another in "
                    f"{1 - share:.0%} of {whose}: {which} may not do what it should",
                )

    # --- facts about all workers ------------------------------------------------------------

    def _facts(self, metrics: Mapping[str, float], reports: Sequence[Collected]) -> Iterator[tuple[str, str]]:
        """Return what all env workers share and a learning run seldom does, each once, without a worker's name."""
        episodes = [episode for report in reports for episode in report.episodes if not episode.infra_fault]
        returns = [episode.episode_return for episode in episodes]
        has_success = any(episode.success for episode in episodes)
        num_rewards = sum(report.num_control_steps for report in reports)
        self._world.add(returns, has_success, num_rewards, [report.tally for report in reports])
        if "busy_resets" in metrics:
            self._reset_shares.append(metrics["busy_resets"])
        is_known = len(self._reset_shares) == _FACT_STEPS
        return self._world.found(statistics.median(self._reset_shares) if is_known else 0.0)


def _blamed(peers: Sequence[int]) -> tuple[str, str]:
    """Return whose episodes a worker's are compared with, and who may be at fault; of two workers, either may be."""
    if len(peers) == 1:
        return f"those of env/{peers[0]}", "one of the two simulators"
    return "those of its peers", "its simulator"


def _has_changed(tally: EnvTally, camera: int) -> bool:
    return len(tally.num_still) > camera and tally.num_still[camera] < tally.num_moved_episodes


def _faults(report: Collected) -> tuple[str, ...]:
    return (*report.simulator_faults, *report.row_faults)
