"""Which arguments of a request are on other nodes only."""

from __future__ import annotations

import gc

import pytest

from rlrun.cluster import waits as module
from rlrun.cluster.waits import Inputs
from rlrun.controller.workers import Future
from rlrun.watchdog.wait_graph import Incoming


@pytest.fixture
def places(monkeypatch) -> dict[str, dict]:
    """The places of references, which are texts here."""
    known: dict[str, dict] = {}
    monkeypatch.setattr(module, "get_local_object_locations", lambda refs: {r: known[r] for r in refs if r in known})
    return known


def node_id(worker: str) -> str:
    return {"actor/0": "a", "env/0": "b", "env/1": "b"}[worker]


def test_what_is_on_another_node_only_is_missing(places) -> None:
    shards = [Future(f"env/{rank}", "collect", f"shard {rank}") for rank in range(2)]
    update = Future("actor/0", "update", "metrics")
    inputs = Inputs()
    inputs.record(update, (3, *shards))
    places["shard 0"] = {"node_ids": ["b"], "object_size": 700}
    places["shard 1"] = {"node_ids": ["b"], "object_size": 600}
    assert inputs.missing([update], node_id) == {"actor/0": Incoming(("env/0", "env/1"), 1300)}
    places["shard 0"] = {"node_ids": ["b", "a"], "object_size": 700}
    assert inputs.missing([update], node_id) == {"actor/0": Incoming(("env/1",), 600)}
    places["shard 1"] = {"node_ids": [], "object_size": 60}  # goes with the request itself
    assert inputs.missing([update], node_id) == {}


def test_arguments_are_not_kept(places) -> None:
    shard = Future("env/0", "collect", "shard 0")
    update = Future("actor/0", "update", "metrics")
    inputs = Inputs()
    inputs.record(update, (shard,))
    places["shard 0"] = {"node_ids": ["b"], "object_size": 700}
    assert inputs.missing([update], node_id)
    del shard
    gc.collect()
    assert inputs.missing([update], node_id) == {}
