"""What becomes of a plan when nodes are lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.plan import Plan
from rlrun.placement.planner import place, plan, replanned
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

A100 = Accelerator("A100", 80 * 10**9, has_rt_cores=False)
RTX = Accelerator("RTX 4090", 24 * 10**9, has_rt_cores=True)
TRAIN = NodeInfo("train", "10.77.0.1", 96, 10**12, (A100,) * 2)
SIM_0 = NodeInfo("sim-0", "10.77.0.2", 64, 256 * 10**9, (RTX,) * 2)
SIM_1 = replace(SIM_0, name="sim-1", address="10.77.0.3")
ALL = Inventory((TRAIN, SIM_0, SIM_1))
SPARE = Inventory((TRAIN, SIM_0, replace(SIM_1, name="sim-9")))


def configured(sim: dict[str, Any], env: dict[str, Any]) -> RunConfig:
    config = RunConfig()
    config.actor.num_workers, config.rollout.num_workers, config.env.num_workers = 2, 1, 4
    config.placement.nodes = {"train": {"accelerator": "A100"}, "sim": {"accelerator": "RTX 4090"} | sim}
    config.placement.roles = {
        "actor": {"on": "train", "accelerators": "0-1"},
        "rollout": {"on": "train", "accelerators": "0"},
        "env": {"on": "sim"} | env,
    }
    return config


def env_places(planned: Plan) -> list[tuple[str, tuple[int, ...]]]:
    return [place(slot) for slot in planned.of("env")]


def test_env_workers_share_what_is_left() -> None:
    config = configured({}, {})
    old = plan(Workload(config), ALL)
    assert env_places(old) == [("sim-0", (0,)), ("sim-0", (1,)), ("sim-1", (0,)), ("sim-1", (1,))]
    new = replanned(config, old, Inventory((TRAIN, SIM_0)), {"sim-1"})
    assert env_places(new) == [("sim-0", (0,)), ("sim-0", (0,)), ("sim-0", (1,)), ("sim-0", (1,))]
    assert new.of("actor") == old.of("actor") and new.of("rollout") == old.of("rollout")


def test_a_spare_node_takes_the_place() -> None:
    config = configured({"count": 2}, {"accelerators": "0-3"})
    new = replanned(config, plan(Workload(config), ALL), SPARE, {"sim-1"})
    assert env_places(new)[2:] == [("sim-9", (0,)), ("sim-9", (1,))]


@pytest.mark.parametrize(("sim", "env"), [({"count": 2}, {}), ({}, {"accelerators": "0-3"})])
def test_what_was_asked_for_in_numbers_is_not_made_smaller(sim: dict[str, Any], env: dict[str, Any]) -> None:
    config = configured(sim, env)
    with pytest.raises(RunError) as raised:
        replanned(config, plan(Workload(config), ALL), Inventory((TRAIN, SIM_0)), {"sim-1"})
    assert raised.value.exit_status is ExitStatus.placement


def test_living_actor_ranks_do_not_move() -> None:
    config = RunConfig()
    config.actor.num_workers, config.rollout.num_workers, config.env.num_workers = 2, 1, 2
    config.placement.roles = {"actor": "2-3", "rollout": "2", "env": "0-1"}
    first = replace(SIM_0, name="a")
    old = plan(Workload(config), Inventory((first, TRAIN, SIM_1)))
    assert [slot.node for slot in old.of("actor")] == ["train", "train"]
    with pytest.raises(RunError, match="actor/0, which is alive, would have to move to sim-1"):
        replanned(config, old, Inventory((TRAIN, SIM_1)), {"a"})
    assert replanned(config, old, Inventory((TRAIN, SIM_1)), {"a", "train"})  # lost itself, it moves
