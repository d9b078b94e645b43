"""Chooses the numbers that a configuration leaves to the plan (`auto`): the fastest by the time model that fit.

Numbers of env and rollout workers decide how long a training step collects, rows of a micro-batch and the share of
checkpointed blocks how long it learns; all of them share the memory of the accelerators. Weights go through it too,
unless a faster choice leaves no room for their buckets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlrun.config.registry import envs_together, with_usual_numbers
from rlrun.config.schema import ClusterKind, RunConfig, WeightTransport
from rlrun.config.sections import freeze
from rlrun.placement.budget import AcceleratorBudget, accelerators, holds_base_on_device, hosts
from rlrun.placement.inventory import GIGABYTE, Inventory
from rlrun.placement.memory import actor_memory, version_bytes
from rlrun.placement.plan import ROLES, Plan
from rlrun.placement.planner import plan, plans
from rlrun.placement.policy_counts import policy_counts
from rlrun.placement.step_time import StepTimes, has_known_devices, step_times, update_seconds
from rlrun.placement.weight_ways import weight_ways
from rlrun.policies.counts import PolicyCounts, replicates_frozen
from rlrun.system.errors import RunError

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of blocks that the backward pass recomputes
MOST_ROWS = 256  # of a micro-batch; larger ones are no faster
_TOLERANCE = 0.01  # relative: of two choices that take about the same time, the one with less memory is taken


@dataclass(frozen=True)
class Choice:
    """The configuration with numbers that fit, its times, and the fullest card of an actor rank."""

    config: RunConfig
    times: StepTimes
    fullest: AcceleratorBudget | None


def choose(config: RunConfig, inventory: Inventory, roles: Sequence[str] = ROLES) -> tuple[RunConfig, list[str]]:
    """Return the configuration with numbers in place of `auto`, and sentences on the choice.

    The numbers are those of a training step, also for a program with some of the roles only. Without accelerators of
    known speed these are the usual ones. Frozen weights become whole on every actor rank where they fit beside the
    other choices. Raises RunError if no choice fits.

    Example: (…, ["Chosen: actor.micro_batch_size=4: 47 of 80 GB, 38 % MFU of an update; 8 rows would need 75 GB."])
    """
    chosen, sentences = _with_numbers(config, inventory, roles)
    whole = _with_whole_frozen(chosen, inventory, roles)
    return (chosen, sentences) if whole is None else (whole[0], [*sentences, whole[1]])


def _with_numbers(config: RunConfig, inventory: Inventory, roles: Sequence[str]) -> tuple[RunConfig, list[str]]:
    if not config.auto:
        return _with_room(config, inventory, roles)
    if any(node.usable for node in inventory.nodes) and config.cluster.kind is ClusterKind.ray:
        search = _Search(config, inventory)
        try:
            best = search.best()
        except RunError:
            if set(roles) == set(ROLES):
                raise
            best = None  # a program without all roles may have machines that a training step does not fit on
        if best is not None:
            is_moved = best.config.weight_sync.transport is not config.weight_sync.transport
            return best.config, [search.sentence(best), *[_NO_ROOM] * is_moved]
    usual, sentences = _with_room(with_usual_numbers(config), inventory, roles)
    return usual, [
        f"Usual numbers, since no training step could be timed on these machines: {_values(config.auto, usual)}.",
        *sentences,
    ]


_FEW = 0.01  # of all parameters; gathering fewer frozen ones costs nothing
_NO_ROOM = (
    "Chosen: weight_sync.transport=object_store, since buckets of weights would find no room on the accelerators."
)


def _with_room(config: RunConfig, inventory: Inventory, roles: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """Return the configuration with weights that go through the host if the plan fits only so, and a sentence on it."""
    try:
        planned = plan(config, inventory, roles)
    except RunError:
        return config, []  # the plan is refused later, too
    if not _fills_accelerators(config, planned):
        return config, []
    counts, tries = policy_counts(config), [(config, list[str]()), (_from_host(config), [_NO_ROOM])]
    for one, sentences in tries:
        try:
            accelerators(one, planned, inventory, counts)
            return one, sentences
        except RunError:
            continue
    return config, []


def _with_whole_frozen(config: RunConfig, inventory: Inventory, roles: Sequence[str]) -> tuple[RunConfig, str] | None:
    """Return the configuration with frozen weights that no rank gathers, and a sentence; None where they stay sharded.

    They do if the key says something, if passes read few or none of them, or if they have no room. The copy of the
    base, which rollout workers merge adapters into, comes first on accelerators that both use.
    """
    actor = config.actor
    if actor.replicate_frozen is not None or actor.cpu_offload or replicates_frozen(actor) or "actor" not in roles:
        return None
    whole = replace(config, actor=replace(actor, replicate_frozen=True))
    try:
        planned = plan(config, inventory, roles)
        places = {(slot.node, index) for slot in planned.of("actor") for index in slot.accelerators}
        if not places:
            return None
        counts = policy_counts(config)
        if counts.num_frozen - counts.num_unread < _FEW * counts.num_parameters:
            return None
        cards = accelerators(whole, planned, inventory, counts)
        hosts(whole, planned, counts, version_bytes(whole, counts)[0])
    except RunError:
        return None
    own = [card for card in cards if (card.node, card.index) in places]
    if not all(card.memory_bytes for card in own):
        return None
    if holds_base_on_device(whole, planned) != holds_base_on_device(config, planned):
        return None
    fullest = max(own, key=lambda card: card.peak_bytes / (card.memory_bytes or 1))
    freeze(whole)
    return whole, f"Chosen: actor.replicate_frozen=true, since frozen weights fit on every rank: {_of(fullest)}."


def _fills_accelerators(config: RunConfig, planned: Plan) -> bool:
    """Return whether buckets of weights take memory of accelerators by the plan's choice."""
    ways = weight_ways(config, planned) if config.weight_sync.transport is None else ()
    return any(way.transport is WeightTransport.device for way in ways)


def _from_host(config: RunConfig) -> RunConfig:
    moved = replace(config, weight_sync=replace(config.weight_sync, transport=WeightTransport.object_store))
    freeze(moved)
    return moved


@dataclass(frozen=True)
class _Option:
    """One choice before its memory is looked at."""

    order: tuple[float, ...]
    num_workers: int  # of env and rollout
    config: RunConfig  # with its numbers of workers
    plan: Plan
    rows: int  # of a micro-batch
    share: float  # of blocks that the backward pass recomputes


def with_less_memory(config: RunConfig) -> RunConfig | None:
    """Return the configuration with sharded frozen weights, half the rows, or at one row all blocks checkpointed.

    The first of these that is left is taken; None: none is. Results differ by rounding only.
    """
    actor = config.actor
    if actor.replicate_frozen and not actor.keeps_gathered and actor.ranks_of_a_copy > 1:
        lowered = replace(config, actor=replace(actor, replicate_frozen=False))
        freeze(lowered)
        return lowered
    rows = config.algorithm.global_batch_size // actor.num_workers
    smaller = [one for one in _divisors(rows) if one <= actor.micro_batch_size // 2]
    if smaller:
        return _with(config, smaller[-1], actor.activation_checkpointing)
    return _with(config, actor.micro_batch_size, 1.0) if actor.activation_checkpointing < 1 else None


class _Search:
    """All choices of one configuration on some machines, ordered by the time of a training step."""

    def __init__(self, config: RunConfig, inventory: Inventory):
        self._config, self._inventory = config, inventory
        self._counts: PolicyCounts = policy_counts(config)
        self._first_bytes, self._weight_bytes = version_bytes(config, self._counts)
        self._refusal: RunError | None = None

    def best(self) -> Choice | None:
        """Return the fastest choice that fits; None if no time is known. Raises RunError if nothing fits."""
        too_large: dict[tuple[int, float], int] = {}  # plan, share of blocks -> rows that do not fit
        options = sorted(self._timed(), key=lambda option: option.order)
        for one in options:
            if one.rows >= too_large.get((id(one.plan), one.share), 2**62):
                continue
            try:
                return self._fitting(one)
            except RunError:
                too_large[id(one.plan), one.share] = one.rows
        if options:
            self._fitting(min(options, key=lambda one: (one.num_workers, one.rows, -one.share)))  # raises its refusal
        if self._refusal is not None:
            raise self._refusal
        return None

    def _fitting(self, option: _Option) -> Choice:
        """Return the choice, with weights through the host if it fits only so. Raises RunError if it does not."""
        config = _with(option.config, rows=option.rows, share=option.share)
        try:
            return self._fitted(config, option)
        except RunError:
            if not _fills_accelerators(config, option.plan):
                raise
            return self._fitted(_from_host(config), option)

    def _fitted(self, config: RunConfig, option: _Option) -> Choice:
        cards = accelerators(config, option.plan, self._inventory, self._counts)
        hosts(config, option.plan, self._counts, self._first_bytes)
        places = {(slot.node, index) for slot in option.plan.of("actor") for index in slot.accelerators}
        own = [card for card in cards if (card.node, card.index) in places and card.memory_bytes]
        fullest = max(own, key=lambda card: card.peak_bytes / (card.memory_bytes or 1), default=None)
        return Choice(config, step_times(config, option.plan, self._counts, self._weight_bytes), fullest)

    def _timed(self) -> Iterator[_Option]:
        """Yield every option with its order: the shortest step first, then few idle accelerators and little memory."""
        for env_workers, rollout_workers in self._workers():
            placed = replace(
                self._config,
                env=replace(self._config.env, num_workers=env_workers),
                rollout=replace(self._config.rollout, num_workers=rollout_workers),
            )
            try:
                options = [one for one in plans(placed, self._inventory) if has_known_devices(one)]
            except RunError as error:
                self._refusal = self._refusal or error
                continue
            for planned in options:
                times = step_times(placed, planned, self._counts, self._weight_bytes)
                answering = {(slot.node, index) for slot in planned.of("rollout") for index in slot.accelerators}
                num_workers = env_workers + rollout_workers
                for rows, share in itertools.product(self._rows(), self._shares()):
                    update_s = update_seconds(placed, planned, self._counts, rows, share)
                    seconds = times.step_s - times.update_s + update_s
                    order = (_rounded(seconds), -len(answering), num_workers, rows * (1 - share), rows)
                    yield _Option(order, num_workers, placed, planned, rows, share)

    def _workers(self) -> Iterator[tuple[int, int]]:
        """Yield numbers of env and rollout workers; each rollout worker serves equally many env workers."""
        config = self._config
        most = config.env.num_envs // envs_together(config.algorithm)
        cards = sum(len(node.usable) for node in self._inventory.nodes)
        is_free = {key: key in config.auto for key in ("env.num_workers", "rollout.num_workers")}
        for envs in _divisors(most) if is_free["env.num_workers"] else [config.env.num_workers]:
            if not is_free["rollout.num_workers"]:
                rollouts = [config.rollout.num_workers] if config.rollout.num_workers <= envs else []
            else:
                rollouts = [one for one in _divisors(envs) if one <= cards]
            yield from ((envs, one) for one in rollouts)

    def _rows(self) -> list[int]:
        if "actor.micro_batch_size" not in self._config.auto:
            return [self._config.actor.micro_batch_size]
        rows = self._config.algorithm.global_batch_size // self._config.actor.num_workers
        return [one for one in _divisors(rows) if one <= MOST_ROWS]

    def _shares(self) -> tuple[float, ...]:
        is_free = "actor.activation_checkpointing" in self._config.auto
        return SHARES if is_free else (self._config.actor.activation_checkpointing,)

    def sentence(self, best: Choice) -> str:
        """Return what was chosen, its memory and MFU, and what the next larger micro-batch would need."""
        words = f"Chosen: {_values(self._config.auto, best.config)}"
        if best.fullest is None:
            return f"{words}."
        words += f": {_of(best.fullest)}"
        if best.times.mfu_update:
            words += f", {best.times.mfu_update:.0%} MFU of an update"
        larger = [rows for rows in self._rows() if rows > best.config.actor.micro_batch_size]
        if larger and "actor.micro_batch_size" in self._config.auto:
            words += f"; {larger[0]} rows would need {self._needed(best, larger[0]) / GIGABYTE:.0f} GB"
        return f"{words}."

    def _needed(self, best: Choice, rows: int) -> int:
        """Return the bytes that the fullest card of an actor rank would need with another micro-batch."""
        assert best.fullest is not None
        larger = _with(best.config, rows, best.config.actor.activation_checkpointing)
        more = actor_memory(larger, self._counts).peak_bytes - actor_memory(best.config, self._counts).peak_bytes
        return best.fullest.peak_bytes + more


def _with(config: RunConfig, rows: int, share: float) -> RunConfig:
    """Return a frozen copy of a configuration with this micro-batch and share of checkpointed blocks."""
    actor = replace(config.actor, micro_batch_size=rows, activation_checkpointing=share)
    chosen = replace(config, actor=actor, auto=[])
    freeze(chosen)
    return chosen


def _values(keys: Sequence[str], config: RunConfig) -> str:
    """Example: "env.num_workers=16 actor.micro_batch_size=4"."""
    found = []
    for key in keys:
        section, _, name = key.partition(".")
        found.append(f"{key}={getattr(getattr(config, section), name):g}")
    return " ".join(found)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _rounded(seconds: float) -> float:
    """Return the seconds in steps of 1 %, so that choices that take about the same time are ordered by memory."""
    return round(math.log(max(seconds, 1e-9)) / _TOLERANCE)


def _of(card: AcceleratorBudget) -> str:
    return f"{card.peak_bytes / GIGABYTE:.0f} of {(card.memory_bytes or 0) / GIGABYTE:.0f} GB"
