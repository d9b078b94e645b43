"""Chooses the numbers that a configuration leaves to the plan (`auto`): the fastest by the time model that fit.

Numbers of env and rollout workers decide how long a training step collects, actor ranks, rows of a micro-batch and the
share of checkpointed blocks how long it learns; all of them share the memory of the accelerators. Roles take turns
there, state of the actor stays in host memory, and weights go through the host, where no faster choice fits. None of
these changes what is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlrun.config.registry import with_usual_numbers
from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.config.sections import freeze
from rlrun.placement.budget import accelerators, holds_base_on_device, hosts
from rlrun.placement.inventory import Inventory
from rlrun.placement.memory import version_bytes
from rlrun.placement.plan import ROLES
from rlrun.placement.planner import plan
from rlrun.placement.policy_counts import policy_counts
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
from rlrun.policies.counts import replicates_frozen
from rlrun.system.errors import RunError

_FEW = 0.01  # of all parameters; gathering fewer frozen ones costs nothing
_NO_ROOM = (
    "Chosen: weight_sync.transport=object_store, since buckets of weights would find no room on the accelerators."
)


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
    cards = sum(len(node.usable) for node in inventory.nodes)
    if cards and config.cluster.kind is ClusterKind.ray:
        search = Search(config, inventory)
        try:
            best = search.best()
        except RunError:
            if set(roles) == set(ROLES):
                raise
            best = None  # a program without all roles may have machines that a training step does not fit on
        if best is not None:
            is_moved = best.config.weight_sync.transport is not config.weight_sync.transport
            return best.config, [*search.sentences(best), *[_NO_ROOM] * is_moved]
    usual = with_usual_numbers(config)
    most = max((one for one in ranks_of(usual, cards) if one <= usual.actor.num_workers), default=1)
    if cards and "actor.num_workers" in config.auto and most < usual.actor.num_workers:
        usual = with_ranks(usual, most)
    placed, sentences = _with_room(settled(usual), inventory, roles)
    told = [key for key in config.auto if cards or key != "actor.num_workers"]
    words = f"Usual numbers, since no training step could be timed on these machines: {values_of(told, placed)}."
    return placed, [*[words] * bool(told), *sentences]


def _with_room(config: RunConfig, inventory: Inventory, roles: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """Return the configuration with weights that go through the host if the plan fits only so, and a sentence on it."""
    try:
        planned = plan(config, inventory, roles)
    except RunError:
        return config, []  # the plan is refused later, too
    if not fills_accelerators(config, planned):
        return config, []
    counts = policy_counts(config)
    tries = [(config, list[str]()), (from_host(config), [_NO_ROOM])]
    for one, sentences in tries:
        try:
            accelerators(one, planned, inventory, counts)
            freeze(one)
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
    return whole, f"Chosen: actor.replicate_frozen=true, since frozen weights fit on every rank: {filling(fullest)}."


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
