"""Waves of loading: everybody loads once, and those that load together fit their node."""

from __future__ import annotations

import pytest

from rlrun.config.schema import Precision, RunConfig, ShardingStrategy
from rlrun.placement.inventory import NodeInfo
from rlrun.placement.memory import BASE_BYTES, load_bytes, loading_room, waves
from rlrun.placement.plan import Choice, Plan, PlannedNode, Slot
from rlrun.placement.policy_counts import estimated

GB = 10**9


def slots(*nodes: str) -> tuple[Slot, ...]:
    return tuple(Slot("actor", rank, node, "", (), "", (), None, None, "") for rank, node in enumerate(nodes))


def ranks(found: list[tuple[Slot, ...]]) -> list[list[int]]:
    return [[slot.rank for slot in wave] for wave in found]


def test_all_at_once_where_there_is_room() -> None:
    assert ranks(waves(slots("a", "a", "b"), 30 * GB, {"a": 60 * GB, "b": 30 * GB})) == [[0, 1, 2]]


def test_nodes_take_turns_by_their_own_room() -> None:
    found = waves(slots("a", "a", "a", "b", "b"), 30 * GB, {"a": 70 * GB, "b": 30 * GB})
    assert ranks(found) == [[0, 1, 3], [2, 4]]


def test_one_at_a_time_where_not_even_one_fits() -> None:
    assert ranks(waves(slots("a", "a"), 30 * GB, {"a": GB})) == [[0], [1]]


def test_nodes_of_unknown_memory_have_no_limit() -> None:
    assert ranks(waves(slots("a", "a"), 30 * GB, {})) == [[0, 1]]


@pytest.mark.parametrize("room", [10, 45, 90, 200, 1000])
def test_everybody_loads_once(room: int) -> None:
    everyone = slots(*("a", "b") * 8)
    found = waves(everyone, 30 * GB, {"a": room * GB, "b": 100 * GB})
    assert sorted(slot.rank for wave in found for slot in wave) == list(range(16))
    for wave in found:
        assert sum(slot.node == "a" for slot in wave) * 30 <= max(room, 30)


def test_bytes_by_hand() -> None:
    config = RunConfig()
    config.rollout.precision = Precision.bf16
    needs = load_bytes(config, estimated(config, 7_000_000_000))
    assert needs == {"actor": BASE_BYTES + 14 * GB, "rollout": BASE_BYTES + 14 * GB, "env": 0}  # two ranks
    config.actor.sharding = ShardingStrategy.no_shard
    assert load_bytes(config, estimated(config, 7_000_000_000))["actor"] == BASE_BYTES + 28 * GB


def test_a_node_has_no_more_room_than_is_free() -> None:
    """Loading may use 90 of the 100 GB of the inventory, or 36 of the 40 GB that are free."""
    nodes = tuple(PlannedNode(NodeInfo(name, "", 8, 100 * GB, ()), "everywhere", 0) for name in ("a", "b"))
    whole = Plan(nodes, slots("a", "b"), Choice("gloo", ""), Choice("gloo", ""))
    assert loading_room(whole) == {"a": 90 * GB, "b": 90 * GB}
    assert loading_room(whole, {"actor/0": 40 * GB}) == {"a": 36 * GB, "b": 90 * GB}
