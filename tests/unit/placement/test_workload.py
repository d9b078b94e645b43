"""What a plan needs of a configuration is looked up once, by the choice, the plan, its budget and the preflight."""

from __future__ import annotations

from collections import Counter

import pytest

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.placement import fitting as fitting_module
from rlrun.placement import planner, workload
from rlrun.placement.fitting import fit_run
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.plan import Plan
from rlrun.placement.policy_counts import estimated
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError

CARDS = (Accelerator("A100", 80 * 10**9, False),) * 2
MACHINES = Inventory((NodeInfo("n", "", 16, 10**12, CARDS),))
BATCHES = ("env.num_envs=8", "algorithm.horizon=4", "algorithm.global_batch_size=32")


def test_one_fit_looks_everything_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, function):
        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    config = load([*BATCHES, "env.num_workers=2", "rollout.num_workers=1"])
    for name in ("simulator_spec", "policy_counts"):
        monkeypatch.setattr(workload, name, counted(name, getattr(workload, name)))
    monkeypatch.setattr(fitting_module, "budget", counted("budget", fitting_module.budget))
    found = fit_run(config, MACHINES)
    assert calls == {"simulator_spec": 1, "policy_counts": 1, "budget": 1}
    assert found.config is found.work.config and found.plan.of("actor")


def test_a_search_makes_the_environment_of_a_slot_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[object] = Counter()
    make = planner._environment

    def counted(work, role, bundle, cores):
        made[role, bundle.accelerators, cores[role]["n"]] += 1
        return make(work, role, bundle, cores)

    monkeypatch.setattr(planner, "_environment", counted)
    fit_run(load([*BATCHES, "env.num_workers=auto", "rollout.num_workers=auto"]), MACHINES)
    assert set(made.values()) == {1}


def test_another_choice_of_numbers_keeps_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load([*BATCHES])
    work = Workload(config, estimated(config, 10**6))
    monkeypatch.setattr(workload, "policy_counts", _never)
    other = load([*BATCHES, "actor.micro_batch_size=2"])
    changed = work.with_config(other)
    assert changed.counts is work.counts and changed.config is other and work.config is config


def test_ways_are_those_of_the_configuration_and_the_plan() -> None:
    work = Workload(load([*BATCHES, "weight_sync.transport=object_store"]))
    planned = planner.plan(work, MACHINES)
    assert work.ways(planned) is work.ways(planned)
    collective = work.with_config(load([*BATCHES, "weight_sync.transport=collective"]))
    assert {way.transport.name for way in collective.ways(planned)} == {"collective"}
    assert {way.transport.name for way in work.ways(planned)} == {"object_store"}


def test_a_refused_plan_ends_the_choice() -> None:
    nodes = "placement.nodes={far: {names: [elsewhere]}}"
    roles = "placement.roles={actor: {on: far}, rollout: {on: far}, env: {on: far}}"
    with pytest.raises(RunError, match="Node group 'far'"):
        fit_run(load([*BATCHES, nodes, roles]), MACHINES)


def _never(config: RunConfig) -> Plan:
    raise AssertionError(config.name)
