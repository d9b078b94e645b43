"""Search of the numbers that a plan may choose: all of them by the time model, the fastest first that fits."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlrun.config.checks_of_learning import (
    batch_divides_among_ranks,
    envs_divide_among_ranks,
    hybrid_groups_divide_ranks,
    minibatches_hold_whole_episodes,
    sft_batch_divides_among_ranks,
)
from rlrun.config.registry import ALGORITHMS, envs_together
from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.config.sections import freeze
from rlrun.placement.budget import AcceleratorBudget, accelerators, hosts, shortage
from rlrun.placement.inventory import GIGABYTE, Inventory
from rlrun.placement.memory import actor_memory, version_bytes
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plans
from rlrun.placement.step_time import StepTimes, has_devices, has_known_devices, step_times, update_seconds
from rlrun.placement.workload import Workload
from rlrun.policies.counts import PolicyCounts
from rlrun.system.errors import RunError

OF_RANKS = (
    envs_divide_among_ranks,
    batch_divides_among_ranks,
    hybrid_groups_divide_ranks,
    minibatches_hold_whole_episodes,
    sft_batch_divides_among_ranks,
)  # checks of the number of actor ranks
LEAST_MFU = 0.01  # that is told: small policies wait for the host
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of blocks that the backward pass recomputes
MOST_ROWS = 256  # of a micro-batch; larger ones are no faster
_TOLERANCE = 0.01  # relative: of two choices that take about the same time, the one with less memory is taken


@dataclass(frozen=True)
class Choice:
    """Numbers that fit, with their plan, its times, and the fullest card of an actor rank."""

    work: Workload  # of the configuration with these numbers
    plan: Plan
    times: StepTimes
    are_times_known: bool  # False: they are those of an assumed accelerator
    fullest: AcceleratorBudget | None


@dataclass(frozen=True)
class _Option:
    """One choice before its memory is looked at."""

    order: tuple[float, ...]
    leanest: tuple[float, ...]  # the smallest needs the least memory of an accelerator, by rule
    config: RunConfig  # with its numbers of workers, and what is offloaded
    plan: Plan
    group: tuple[object, ...]  # options of a group differ in rows and share only
    rows: int  # of a micro-batch
    share: float  # of blocks that the backward pass recomputes


class Search:
    """All choices of one configuration on some machines, ordered by the time of a training step."""

    def __init__(self, work: Workload, inventory: Inventory):
        self._work = work
        self._config = work.config
        self._inventory = inventory
        self._counts: PolicyCounts = work.counts
        self._first_bytes, self._weight_bytes = version_bytes(work.config, work.counts)
        self._refusal: RunError | None = None
        self._known_updates: dict[object, dict[tuple[int, float], float]] = {}

    def best(self) -> Choice | None:
        """Return the fastest choice that fits; None without accelerators. Raises RunError if nothing fits.

        The actor's state stays in host memory only if nothing fits otherwise, since it is slower.
        """
        actor = self._config.actor
        if actor.cpu_offload is not None:
            return self._best(bool(actor.cpu_offload))
        try:
            return self._best(False)
        except RunError:
            if actor.replicate_frozen is not None:
                raise
            return self._best(True)

    def _best(self, cpu_offload: bool) -> Choice | None:
        too_large: dict[tuple[object, ...], int] = {}  # group, share of blocks -> rows that do not fit
        hopeless: set[tuple[object, ...]] = set()  # groups in which nothing fits
        options = sorted(self._timed(cpu_offload), key=lambda option: option.order)
        leanest = {one.group: one for one in sorted(options, key=lambda option: option.leanest, reverse=True)}
        for one in options:
            if one.group in hopeless or one.rows >= too_large.get((*one.group, one.share), 2**62):
                continue
            try:
                return self._fitting(one)
            except RunError:
                too_large[*one.group, one.share] = one.rows
            try:
                self._fitting(leanest[one.group])
            except RunError:
                hopeless.add(one.group)
        if options:
            self._fitting(min(leanest.values(), key=self._shortage))  # raises its refusal
        if self._refusal is not None:
            raise self._refusal
        return None

    def _shortage(self, option: _Option) -> int:
        config = with_rows(option.config, rows=option.rows, share=option.share)
        work = self._work.with_config(config)
        moved = from_host(work) if fills_accelerators(work, option.plan) else work
        return shortage(moved, option.plan, self._inventory)

    def _fitting(self, option: _Option) -> Choice:
        """Return the choice, with weights through the host if it fits only so. Raises RunError if it does not."""
        work = self._work.with_config(with_rows(option.config, rows=option.rows, share=option.share))
        try:
            found = self._fitted(work, option)
        except RunError:
            if not fills_accelerators(work, option.plan):
                raise
            found = self._fitted(from_host(work), option)
        freeze(found.work.config)
        return found

    def _fitted(self, work: Workload, option: _Option) -> Choice:
        cards = accelerators(work, option.plan, self._inventory)
        hosts(work, option.plan, self._first_bytes)
        places = option.plan.cards_of("actor")
        own = [card for card in cards if (card.node, card.index) in places and card.memory_bytes]
        fullest = max(own, key=lambda card: card.peak_bytes / (card.memory_bytes or 1), default=None)
        times = step_times(work, option.plan, self._weight_bytes)
        return Choice(work, option.plan, times, has_known_devices(option.plan), fullest)

    def _timed(self, cpu_offload: bool) -> Iterator[_Option]:
        """Yield every option with its order: the shortest step first, then few idle accelerators and little memory."""
        for ranks, (env_workers, rollout_workers) in itertools.product(self._ranks(), self._workers()):
            placed = replace(
                with_ranks(self._config, ranks),
                env=replace(self._config.env, num_workers=env_workers),
                rollout=replace(self._config.rollout, num_workers=rollout_workers),
            )
            try:
                work = self._work.with_config(settled(placed))
                options = [one for one in plans(work, self._inventory) if has_devices(one)]
            except RunError as error:
                self._refusal = self._refusal or error
                continue
            for number, planned in enumerate(options):
                for config in _offloading(placed, planned, cpu_offload):
                    yield from self._of_plan(config, planned, (ranks, env_workers, rollout_workers, number))

    def _of_plan(self, config: RunConfig, planned: Plan, group: tuple[object, ...]) -> Iterator[_Option]:
        """Yield the options of a plan: rows of a micro-batch, and shares of checkpointed blocks."""
        times = step_times(self._work.with_config(config), planned, self._weight_bytes)
        answering = planned.cards_of("rollout")
        num_workers = config.env.num_workers + config.rollout.num_workers
        moved = bool(config.placement.offload)
        for (rows, share), update_s in self._updates(config, planned).items():
            seconds = replace(times, update_s=update_s).step_s
            order = (_rounded(seconds), moved, -len(answering), num_workers, rows * (1 - share), rows)
            leanest = (not moved, -config.actor.num_workers, num_workers, rows, -share)
            yield _Option(order, leanest, config, planned, (*group, moved), rows, share)

    def _updates(self, config: RunConfig, planned: Plan) -> dict[tuple[int, float], float]:
        """Return the seconds of an update by rows and share; the same for all plans with the actor ranks there."""
        places = tuple((slot.node, slot.accelerators) for slot in planned.of("actor"))
        if (places, config.actor.cpu_offload) not in self._known_updates:
            work = self._work.with_config(config)
            self._known_updates[places, config.actor.cpu_offload] = {
                (rows, share): update_seconds(work, planned, rows, share)
                for rows, share in itertools.product(self._rows(config), self._shares())
            }
        return self._known_updates[places, config.actor.cpu_offload]

    def _ranks(self) -> list[int]:
        """Return numbers of actor ranks: by rule the most on the accelerators of each model, and of all."""
        if "actor.num_workers" not in self._config.auto:
            return [self._config.actor.num_workers]
        nodes = self._inventory.nodes
        models = Counter(node.accelerators[index].model for node in nodes for index in node.usable)
        found = ranks_of(self._config, models.total())
        if self._config.placement.roles:
            return found
        return sorted({max(one for one in found if one <= most) for most in (*models.values(), models.total())})

    def _workers(self) -> Iterator[tuple[int, int]]:
        """Yield numbers of env and rollout workers; each rollout worker serves equally many env workers."""
        config = self._config
        most = config.env.num_envs // envs_together(config.algorithm)
        cards = sum(len(node.usable) for node in self._inventory.nodes)
        is_free = {key: key in config.auto for key in ("env.num_workers", "rollout.num_workers")}
        for envs in divisors(most) if is_free["env.num_workers"] else [config.env.num_workers]:
            if not is_free["rollout.num_workers"]:
                rollouts = [config.rollout.num_workers] if config.rollout.num_workers <= envs else []
            else:
                rollouts = [one for one in divisors(envs) if one <= cards]
            yield from ((envs, one) for one in rollouts)

    def _rows(self, config: RunConfig) -> list[int]:
        if "actor.micro_batch_size" not in self._config.auto:
            return [config.actor.micro_batch_size]
        rows = config.algorithm.global_batch_size // config.actor.num_workers
        return [one for one in divisors(rows) if one <= MOST_ROWS]

    def _shares(self) -> tuple[float, ...]:
        is_free = "actor.activation_checkpointing" in self._config.auto
        return SHARES if is_free else (self._config.actor.activation_checkpointing,)

    def sentences(self, best: Choice) -> list[str]:
        """Return what was chosen, its memory and MFU, and what more rows would need; [] if nothing."""
        told = [*self._config.auto, *_moved(self._config, best.work.config)]
        if not told:
            return []
        words = f"Chosen: {values_of(told, best.work.config)}"
        if best.fullest is None:
            return [f"{words}."]
        words += f": {filling(best.fullest)}"
        if best.are_times_known and best.times.mfu_update >= LEAST_MFU:
            words += f", {best.times.mfu_update:.0%} MFU of an update"
        larger = [rows for rows in self._rows(best.work.config) if rows > best.work.config.actor.micro_batch_size]
        if larger and "actor.micro_batch_size" in self._config.auto:
            words += f"; {larger[0]} rows would need {self._needed(best, larger[0]) / GIGABYTE:.0f} GB"
        return [f"{words}.", *self._rounding(best)]

    def _rounding(self, best: Choice) -> list[str]:
        """Return why fewer actor ranks were chosen than accelerators could be had, if counts do not divide."""
        cards = sum(len(node.usable) for node in self._inventory.nodes)
        ranks = best.work.config.actor.num_workers
        fitting = self._ranks()
        if "actor.num_workers" not in self._config.auto or ranks < max(fitting) or ranks == cards:
            return []
        config = self._config
        counts = f"env.num_envs={config.env.num_envs}, algorithm.global_batch_size={config.algorithm.global_batch_size}"
        return [
            f"{ranks} of {cards} accelerators train: no larger number divides {counts} and "
            f"sft.batch_size={config.sft.batch_size}."
        ]

    def _needed(self, best: Choice, rows: int) -> int:
        """Return the bytes that the fullest card of an actor rank would need with another micro-batch."""
        assert best.fullest is not None
        present = best.work.config
        larger = with_rows(present, rows, present.actor.activation_checkpointing)
        more = actor_memory(larger, self._counts).peak_bytes - actor_memory(present, self._counts).peak_bytes
        return best.fullest.peak_bytes + more


def ranks_of(config: RunConfig, num_cards: int) -> list[int]:
    """Return the numbers of actor ranks, an accelerator each, among which the counts of a configuration divide."""
    found = []
    for ranks in range(1, min(num_cards, config.algorithm.global_batch_size) + 1):
        placed = with_ranks(config, ranks)
        checks = [*OF_RANKS, ALGORITHMS.chosen(config).check]
        if not any(True for check in checks for _ in check(placed)):
            found.append(ranks)
    return found


def with_ranks(config: RunConfig, ranks: int) -> RunConfig:
    """Return a frozen copy with this number of actor ranks, and a micro-batch that divides a rank's rows."""
    most = config.actor.micro_batch_size
    rows = [one for one in divisors(config.algorithm.global_batch_size // ranks) if one <= most]
    placed = replace(config, actor=replace(config.actor, num_workers=ranks, micro_batch_size=rows[-1]))
    freeze(placed)
    return placed


def settled(config: RunConfig) -> RunConfig:
    """Return a frozen copy in which nothing is offloaded that no key offloads."""
    settled = replace(
        config,
        placement=replace(config.placement, offload=bool(config.placement.offload)),
        actor=replace(config.actor, cpu_offload=bool(config.actor.cpu_offload)),
    )
    freeze(settled)
    return settled


def _moved(before: RunConfig, after: RunConfig) -> list[str]:
    """Return the keys of what the search offloads."""
    found = ["placement.offload"] * (before.placement.offload is None and bool(after.placement.offload))
    return found + ["actor.cpu_offload"] * (before.actor.cpu_offload is None and bool(after.actor.cpu_offload))


def with_rows(config: RunConfig, rows: int, share: float) -> RunConfig:
    """Return a copy of a configuration with this micro-batch and share of checkpointed blocks."""
    actor = replace(config.actor, micro_batch_size=rows, activation_checkpointing=share)
    return replace(config, actor=actor, auto=[])


def fills_accelerators(work: Workload, planned: Plan) -> bool:
    """Return whether buckets of weights take memory of accelerators by the plan's choice."""
    ways = work.ways(planned) if work.config.weight_sync.transport is None else ()
    return any(way.transport is WeightTransport.device for way in ways)


def from_host(work: Workload) -> Workload:
    sync = replace(work.config.weight_sync, transport=WeightTransport.object_store)
    return work.with_config(replace(work.config, weight_sync=sync))


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _rounded(seconds: float) -> float:
    """Return the seconds in steps of 1 %, so that choices that take about the same time are ordered by memory."""
    return round(math.log(max(seconds, 1e-9)) / _TOLERANCE)


def filling(card: AcceleratorBudget) -> str:
    return f"{card.peak_bytes / GIGABYTE:.0f} of {(card.memory_bytes or 0) / GIGABYTE:.0f} GB"


def values_of(keys: Sequence[str], config: RunConfig) -> str:
    """Example: "env.num_workers=16 actor.micro_batch_size=4"."""
    found = []
    for key in keys:
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name)
        found.append(f"{key}={str(value).lower() if isinstance(value, bool) else format(value, 'g')}")
    return " ".join(found)


def _offloading(config: RunConfig, planned: Plan, cpu_offload: bool) -> Iterator[RunConfig]:
    """Yield the configuration, and with roles that take turns if that is free on this plan."""
    is_shared = bool(planned.cards_of("actor") & planned.cards_of("rollout"))
    may_turn = config.placement.offload is None and is_shared
    may_turn = may_turn and config.weight_sync.transport is not WeightTransport.device
    actor = replace(config.actor, cpu_offload=cpu_offload)
    for offload in (False, True)[: 1 + may_turn]:
        turns = bool(config.placement.offload) or offload
        yield replace(config, actor=actor, placement=replace(config.placement, offload=turns))
