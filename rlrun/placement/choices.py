"""Chooses the numbers that a configuration leaves to the plan (`auto`): the fastest by the time model that fit.

Numbers of env and rollout workers decide how long a training step collects, actor ranks, rows of a micro-batch and the
share of checkpointed blocks how long it learns; all of them share the memory of the accelerators. Roles take turns
there, state of the actor stays in host memory, and weights go through the host, where no faster choice fits. None of
these changes what is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlrun.config.registry import with_usual_numbers
from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.config.sections import freeze
from rlrun.placement.budget import accelerators, holds_base_on_device, hosts
from rlrun.placement.inventory import Inventory
from rlrun.placement.memory import version_bytes
from rlrun.placement.plan import ROLES, Plan
from rlrun.placement.planner import plan
from rlrun.placement.search import (
    Search,
    divisors,
    filling,
    fills_accelerators,
    from_host,
    ranks_of,
    settled,
    values_of,
    with_ranks,
    with_rows,
)
from rlrun.placement.workload import Workload
from rlrun.policies.counts import replicates_frozen
from rlrun.system.errors import RunError

_FEW = 0.01  # of all parameters; gathering fewer frozen ones costs nothing
_NO_ROOM = (
    "Chosen: weight_sync.transport=object_store, since buckets of weights would find no room on the accelerators."
)


@dataclass(frozen=True)
class Chosen:
    """A configuration with numbers in place of `auto`, where its workers go, and sentences on what was chosen."""

    work: Workload
    plan: Plan
    sentences: tuple[str, ...]


def choose(work: Workload, inventory: Inventory, roles: Sequence[str] = ROLES) -> Chosen:
    """Return the numbers that fit in place of `auto`, with their plan.

    The numbers are those of a training step, also for a program with some of the roles only. Without accelerators of
    known speed these are the usual ones. Frozen weights become whole on every actor rank where they fit beside the
    other choices. Raises RunError if no choice fits.

    Example: (…, "Chosen: actor.micro_batch_size=4: 47 of 80 GB, 38 % MFU of an update; 8 rows would need 75 GB.")
    """
    chosen = _with_numbers(work, inventory, roles)
    return _with_whole_frozen(chosen, inventory, roles) or chosen


def _with_numbers(work: Workload, inventory: Inventory, roles: Sequence[str]) -> Chosen:
    config = work.config
    cards = sum(len(node.usable) for node in inventory.nodes)
    if cards and config.cluster.kind is ClusterKind.ray:
        search = Search(work, inventory)
        try:
            best = search.best()
        except RunError:
            if set(roles) == set(ROLES):
                raise
            best = None  # a program without all roles may have machines that a training step does not fit on
        if best is not None:
            is_moved = best.work.config.weight_sync.transport is not config.weight_sync.transport
            planned = best.plan if set(roles) == set(ROLES) else plan(best.work, inventory, roles)
            return Chosen(best.work, planned, (*search.sentences(best), *[_NO_ROOM] * is_moved))
    usual = with_usual_numbers(config)
    most = max((one for one in ranks_of(usual, cards) if one <= usual.actor.num_workers), default=1)
    if cards and "actor.num_workers" in config.auto and most < usual.actor.num_workers:
        usual = with_ranks(usual, most)
    chosen = _with_room(work.with_config(settled(usual)), inventory, roles)
    told = [key for key in config.auto if cards or key != "actor.num_workers"]
    values = values_of(told, chosen.work.config)
    words = f"Usual numbers, since no training step could be timed on these machines: {values}."
    return replace(chosen, sentences=(*[words] * bool(told), *chosen.sentences))


def _with_room(work: Workload, inventory: Inventory, roles: Sequence[str]) -> Chosen:
    """Return the plan, with weights that go through the host if it fits only so, and a sentence on it."""
    planned = plan(work, inventory, roles)
    if not fills_accelerators(work, planned):
        return Chosen(work, planned, ())
    for one, sentences in ((work, ()), (from_host(work), (_NO_ROOM,))):
        try:
            accelerators(one, planned, inventory)
        except RunError:
            continue
        freeze(one.config)
        return Chosen(one, planned, sentences)
    return Chosen(work, planned, ())


def _with_whole_frozen(chosen: Chosen, inventory: Inventory, roles: Sequence[str]) -> Chosen | None:
    """Return the choice with frozen weights that no rank gathers; None where they stay sharded.

    They do if the key says something, if passes read few or none of them, or if they have no room. The copy of the
    base, which rollout workers merge adapters into, comes first on accelerators that both use.
    """
    config = chosen.work.config
    planned = chosen.plan
    actor = config.actor
    if actor.replicate_frozen is not None or actor.cpu_offload or replicates_frozen(actor) or "actor" not in roles:
        return None
    whole = chosen.work.with_config(replace(config, actor=replace(actor, replicate_frozen=True)))
    places = planned.cards_of("actor")
    if not places:
        return None
    try:
        counts = whole.counts
        if counts.num_frozen - counts.num_unread < _FEW * counts.num_parameters:
            return None
        cards = accelerators(whole, planned, inventory)
        hosts(whole, planned, version_bytes(whole.config, counts)[0])
    except RunError:
        return None
    own = [card for card in cards if (card.node, card.index) in places]
    if not all(card.memory_bytes for card in own):
        return None
    if holds_base_on_device(whole, planned) != holds_base_on_device(chosen.work, planned):
        return None
    fullest = max(own, key=lambda card: card.peak_bytes / (card.memory_bytes or 1))
    freeze(whole.config)
    sentence = f"Chosen: actor.replicate_frozen=true, since frozen weights fit on every rank: {filling(fullest)}."
    return Chosen(whole, planned, (*chosen.sentences, sentence))


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
    smaller = [one for one in divisors(rows) if one <= actor.micro_batch_size // 2]
    if not smaller and actor.activation_checkpointing == 1:
        return None
    rows_and_share = (smaller[-1], actor.activation_checkpointing) if smaller else (actor.micro_batch_size, 1.0)
    lowered = with_rows(config, *rows_and_share)
    freeze(lowered)
    return lowered
