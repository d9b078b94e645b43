"""A wait that goes on, but takes far longer than usual."""

from __future__ import annotations

from rlrun.system.status import OpenWait
from rlrun.watchdog.budgets import Slowness
from rlrun.watchdog.wait_graph import Process, leaves


def at(host, worker, phase, on=()):
    waits = (OpenWait("actions", tuple(on), 1.0, 600.0),) if on else ()
    return Process(worker, host, 4711, phase, False, 1.0, waits)


ASKING = [at("sim", "env/0", "wait for actions", ["rollout/0"]), at("train", "rollout/0", "idle")]
WORKING = [at("sim", "env/0", "simulate"), at("train", "rollout/0", "idle")]


def checked(slowness, processes, waited_s):
    known = {process.worker: process for process in processes}
    return slowness.check(leaves(["env/0"], known), known, waited_s)


def test_the_most_frequent_leaf_is_reported_once():
    slowness = Slowness("trajectories", usual_s=4.0)
    assert [checked(slowness, ASKING, second) for second in range(19)] == [None] * 19
    assert checked(slowness, WORKING, 19.0) is None
    sentence = checked(slowness, ASKING, 21.0)
    assert sentence == "trajectories: 21 s so far, usual 4 s; 95 % of it: the way between sim and train"
    assert checked(slowness, ASKING, 60.0) is None


def test_up_to_twice_the_usual_and_unknown_waits_are_not_reported():
    assert checked(Slowness("trajectories", usual_s=40.0), WORKING, 79.0) is None
    assert checked(Slowness("trajectories", usual_s=40.0), WORKING, 81.0).endswith("100 % of it: env/0@sim in simulate")
    assert checked(Slowness("trajectories", usual_s=None), WORKING, 500.0) is None
