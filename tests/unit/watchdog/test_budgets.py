"""Budgets: learned from silences without a warning, within bounds, kept per configuration."""

from __future__ import annotations

import json

import pytest

from rlrun.config.loader import load
from rlrun.watchdog.budgets import Budgets


@pytest.fixture
def settings(tmp_path):
    return [f"cache_dir={tmp_path}", "cluster.start_deadline_s=300", "cluster.step_deadline_s=600"]


@pytest.fixture
def budgets(settings):
    return Budgets(load(settings))


def learn(budgets, *silences, phase="simulate", worker="env/0", factor=1.0):
    """Learn one sample after another; return the reported changes."""
    changes = []
    for seconds in silences:
        learn.number += 1
        changes += budgets.learn(worker, {phase: (learn.number, seconds)}, factor)
    return changes


learn.number = 0


def alarm_s(budgets, factor=1.0):
    return budgets.seconds("env", "simulate", False, factor)


def test_five_times_the_usual_within_floor_and_ceiling(budgets):
    assert alarm_s(budgets) == 600 and budgets.seconds("env", "load", True) == 300
    learn(budgets, 8.2)
    learn(budgets, 0.1, worker="env/1")
    learn(budgets, 20.0, phase="load, first")
    assert budgets.usual("env", "simulate", False) == 8.2
    assert alarm_s(budgets) == pytest.approx(41.0)
    assert budgets.seconds("env", "load", True) == 100.0
    learn(budgets, 0.01, phase="act", worker="rollout/0")
    assert budgets.seconds("rollout", "act", False) == 20  # the floor
    assert budgets.seconds("rollout", "act", True) == 300  # the first time has its own budget
    assert budgets.summary() == (
        "env.load, first: usual 20 s, alarm 100 s; env.simulate: usual 8.2 s, alarm 41 s; 1 other phases: alarm 20 s"
    )


def test_a_sample_is_taken_once(budgets):
    for _ in range(60):
        budgets.learn("env/0", {"simulate": (1, 8.0)})
    learn(budgets, *[1.0] * 20)
    assert budgets.usual("env", "simulate", False) == 1.0  # 8.0 was one of 21


def test_a_stall_that_ended_by_itself_is_not_learned(budgets):
    """Neither with a warning nor with an alarm."""
    learn(budgets, 0.5)
    learn(budgets, 12.0, 0.5, 12.0, 0.5, 200.0, 0.5, 200.0)
    assert alarm_s(budgets) == 20.0 and budgets.usual("env", "simulate", False) == 0.5


def test_nor_is_it_learned_by_the_next_run(settings):
    for _ in range(3):
        budgets = Budgets(load(settings))
        learn(budgets, 0.5, 12.0, 200.0)
        assert alarm_s(budgets) == 20.0
        budgets.save()


def test_one_stall_does_not_teach_a_new_phase(budgets):
    learn(budgets, 200.0)
    assert budgets.usual("env", "simulate", False) is None and alarm_s(budgets) == 600
    learn(budgets, 0.5)
    assert alarm_s(budgets) == 20.0


def test_a_slower_phase_becomes_usual_at_the_fifth_time_in_a_row(budgets):
    """A larger scene: three times as slow."""
    learn(budgets, *[10.0] * 60)
    assert alarm_s(budgets) == 50.0
    assert learn(budgets, 30.0, 30.0, 30.0, 30.0) == [] and alarm_s(budgets) == 50.0
    changes = learn(budgets, 30.0)
    assert changes == ["env: simulate took 30 s, 5 times in a row: that is usual from now on"]
    assert alarm_s(budgets) == 150.0 and learn(budgets, *[30.0] * 60) == []


def test_a_usual_silence_restarts_the_count(budgets):
    learn(budgets, *[10.0] * 60)
    for _ in range(10):
        learn(budgets, 30.0, 30.0, 30.0, 30.0, 10.0)
    assert alarm_s(budgets) == 50.0


def test_a_phase_that_slows_down_gradually_is_followed(budgets):
    """Slowly with many samples behind it, or by half each time with few."""
    seconds = 5.0
    while seconds < 100.0:
        learn(budgets, *[seconds] * 5)
        seconds *= 1.2
    assert alarm_s(budgets) > 400.0
    learn(budgets, *[8.0 * 1.5**step for step in range(6)], phase="reset")
    assert budgets.usual("env", "reset", False) == pytest.approx(8.0 * 1.5**5, abs=0.01)


def test_an_outlier_is_forgotten(budgets):
    learn(budgets, *[9.0] * 3, 18.0)
    assert alarm_s(budgets) == 90.0
    learn(budgets, *[9.0] * 50)
    assert alarm_s(budgets) == 45.0


def test_on_a_loaded_host_the_ceiling_holds(budgets):
    learn(budgets, 0.5)
    assert alarm_s(budgets, factor=3.0) == 60.0
    learn(budgets, *[50.0] * 5, factor=3.0)  # outliers, then usual, but at most the budget of an unloaded host
    assert alarm_s(budgets) == 100.0 and alarm_s(budgets, factor=3.0) == 300.0
    learn(budgets, *[60.0] * 60, *[200.0] * 60)
    assert alarm_s(budgets, factor=3.0) == 600.0
    assert budgets.unresponsive_s("env", "simulate", False, factor=3.0) == 600.0
    budgets.learn_driver("collect", 400.0)
    assert budgets.delivery_s("collect", factor=3.0) == 600.0


def test_a_silence_on_a_loaded_host_is_learned_without_a_warning(budgets):
    learn(budgets, 0.5)
    learn(budgets, 18.0)
    assert alarm_s(budgets) == 20.0
    learn(budgets, 18.0, factor=3.0)
    assert alarm_s(budgets) == 90.0


def test_kept_for_the_same_configuration_only(settings):
    first = Budgets(load(settings))
    learn(first, 8.0)
    learn(first, 2.0, phase="load, first")
    first.save()
    again = Budgets(load([*settings, "seed=7", "num_steps=3", "watchdog.factor=2"]))
    assert again.usual("env", "simulate", False) == 8.0 and again.seconds("env", "simulate", False) == 20
    learn(again, *[1.0] * 50)
    again.save()
    third = Budgets(load(settings))
    assert third.usual("env", "simulate", False) == 1.0 and third.usual("env", "load", True) == 2.0
    assert Budgets(load([*settings, "env.image_size=128"])).usual("env", "simulate", False) is None


@pytest.mark.parametrize(
    "damaged",
    [
        "{",
        "[1]",
        '{"env.simulate": 1742.0}',
        '{"env.simulate": {"usual_s": [1e9, -1, "x", true, null, NaN], "outliers_s": 3}}',
        '{"env.simulate": {"usual_s": {"a": 1}}}',
    ],
)
def test_a_damaged_file_is_learned_again(settings, tmp_path, damaged):
    budgets = Budgets(load(settings))
    learn(budgets, 8.0)
    budgets.save()
    (file,) = (tmp_path / "budgets").iterdir()
    file.write_text(damaged)
    assert Budgets(load(settings)).usual("env", "simulate", False) is None


def test_samples_above_the_ceiling_are_left_out(settings, tmp_path):
    budgets = Budgets(load(settings))
    learn(budgets, 8.0)
    budgets.save()
    (file,) = (tmp_path / "budgets").iterdir()
    kept = json.loads(file.read_text())
    kept["env.simulate"]["usual_s"] += [601.0]
    file.write_text(json.dumps(kept))
    assert Budgets(load(settings)).usual("env", "simulate", False) == 8.0


def test_unresponsive_workers_get_the_longest_budget_of_their_repeated_phases(budgets):
    assert budgets.unresponsive_s("env", "wait for actions", False) == 600
    learn(budgets, 8.0)
    learn(budgets, 12.0, phase="reset")
    learn(budgets, 18.0, phase="load, first")
    assert budgets.unresponsive_s("env", "wait for actions", False) == pytest.approx(60.0)
    assert budgets.unresponsive_s("env", "load", True) == pytest.approx(90.0)
    assert budgets.unresponsive_s("env", "record demos", True) == 300  # never seen


def test_delivery_is_twice_the_phase(budgets):
    assert budgets.delivery_s("collect") == 600
    budgets.learn_driver("collect", 30.0)
    budgets.learn_driver("sync", 0.5)
    assert budgets.delivery_s("collect") == 60 and budgets.delivery_s("sync") == 20


def test_a_phase_of_the_driver_that_was_late_is_learned_at_the_fifth_time(budgets):
    budgets.learn_driver("collect", 30.0)
    for _ in range(4):
        budgets.learn_driver("collect", 90.0)
    assert budgets.usual("driver", "collect", False) == 30.0
    budgets.learn_driver("collect", 90.0)
    assert budgets.usual("driver", "collect", False) == 90.0


def test_runs_with_other_node_groups_have_their_own_budgets(settings):
    """YAML reads the key `on` of a role as a boolean."""
    kept = Budgets(load([*settings, "placement=dual_node"]))
    learn(kept, 8.2)
    kept.save()
    assert Budgets(load([*settings, "placement=dual_node"])).usual("env", "simulate", False) == 8.2
    assert Budgets(load([*settings, "placement=colocated"])).usual("env", "simulate", False) is None


def test_a_full_or_missing_cache_costs_nothing_but_the_hint(tmp_path):
    """The run is over and its policy written; the next one learns its budgets again."""
    (tmp_path / "file").write_text("in the way")
    Budgets(load([f"cache_dir={tmp_path / 'file'}"])).save()
