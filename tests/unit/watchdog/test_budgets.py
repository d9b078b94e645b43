"""Budgets: learned, bounded, kept per configuration."""

from __future__ import annotations

import pytest

from rlrun.config.loader import load
from rlrun.watchdog.budgets import Budgets


@pytest.fixture
def settings(tmp_path):
    return [f"cache_dir={tmp_path}", "cluster.start_deadline_s=300", "cluster.step_deadline_s=600"]


def test_five_times_the_slowest_within_floor_and_ceiling(settings):
    budgets = Budgets(load(settings))
    assert budgets.seconds("env", "simulate", False) == 600 and budgets.seconds("env", "load", True) == 300
    budgets.learn("env/0", {"simulate": 8.2, "load, first": 3.0})
    budgets.learn("env/1", {"simulate": 0.1, "load, first": 90.0})
    assert budgets.usual("env", "simulate", False) == 8.2
    assert budgets.seconds("env", "simulate", False) == pytest.approx(41.0)
    assert budgets.seconds("env", "load", True) == 300  # 450 is over the ceiling
    budgets.learn("rollout/0", {"act": 0.01})
    assert budgets.seconds("rollout", "act", False) == 20  # the floor
    assert budgets.seconds("rollout", "act", True) == 300  # its first time is another matter
    assert budgets.told() == (
        "env.load, first: usual 90 s, alarm 300 s; env.simulate: usual 8.2 s, alarm 41 s; 1 other phases: alarm 20 s"
    )


def test_kept_for_the_same_configuration_only(settings):
    first = Budgets(load(settings))
    first.learn("env/0", {"simulate": 8.0, "load, first": 2.0})
    first.save()
    again = Budgets(load([*settings, "seed=7", "num_steps=3", "watchdog.factor=2"]))
    assert again.usual("env", "simulate", False) == 8.0 and again.seconds("env", "simulate", False) == 20
    again.learn("env/0", {"simulate": 1.0})
    again.save()  # the newest run counts, for the phases that it went through
    third = Budgets(load(settings))
    assert third.usual("env", "simulate", False) == 1.0 and third.usual("env", "load", True) == 2.0
    assert Budgets(load([*settings, "env.image_size=128"])).usual("env", "simulate", False) is None


def test_a_spoilt_file_is_learned_again(settings, tmp_path):
    budgets = Budgets(load(settings))
    budgets.learn("env/0", {"simulate": 8.0})
    budgets.save()
    (file,) = (tmp_path / "budgets").iterdir()
    file.write_text("{")
    assert Budgets(load(settings)).usual("env", "simulate", False) is None


def test_mute_workers_get_the_longest_of_what_they_come_back_to(settings):
    budgets = Budgets(load(settings))
    assert budgets.mute_s("env", "wait for actions", False) == 600
    budgets.learn("env/0", {"simulate": 8.0, "reset": 12.0, "load, first": 50.0})
    assert budgets.mute_s("env", "wait for actions", False) == pytest.approx(60.0)
    assert budgets.mute_s("env", "load", True) == pytest.approx(250.0)
    assert budgets.mute_s("env", "record demos", True) == 300  # never seen


def test_delivery_is_twice_the_phase(settings):
    budgets = Budgets(load(settings))
    assert budgets.delivery_s("collect") == 600
    budgets.learn("driver/0", {"collect": 30.0, "sync": 0.5})
    assert budgets.delivery_s("collect") == 60 and budgets.delivery_s("sync") == 20


def test_runs_with_node_groups_are_told_apart(settings):
    """YAML reads the key `on` of a role as a boolean."""
    kept = Budgets(load([*settings, "placement=dual_node"]))
    kept.learn("env/0", {"simulate": 8.2})
    kept.save()
    assert Budgets(load([*settings, "placement=dual_node"])).usual("env", "simulate", False) == 8.2
    assert Budgets(load([*settings, "placement=colocated"])).usual("env", "simulate", False) is None
