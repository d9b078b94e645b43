"""One culprit, one sentence, one action."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlrun.system.status import OpenWait
from rlrun.watchdog.diagnosis import NodeFacts, ProcessFacts, Stall, diagnose, format_workers
from rlrun.watchdog.wait_graph import Leaf, Process, leaves


def process(worker, phase="simulate", silence_s=60.0, is_answering=True, on=(), host="sim-0"):
    waits = (
        (OpenWait("actions" if on and on[0].startswith("r") else "observations", tuple(on), 1.0, 9.0),) if on else ()
    )
    return Process(worker, host, 19016, phase, False, silence_s, waits, is_answering)


def found(pending, processes, facts=None, nodes=None):
    known = {p.worker: p for p in processes}
    return diagnose(Stall("trajectories", pending, leaves(pending, known), known, facts or {}, nodes or {}))


def test_the_sentence_of_the_design():
    stalled = found(
        ["env/0", "env/1"],
        [
            process("env/0", "wait for actions", on=["rollout/0"]),
            process("rollout/0", "idle", on=["env/1"]),
            process("env/1", silence_s=214.0),
        ],
        {"env/1": ProcessFacts("D", "step (omnigibson/simulator.py:1)")},
        {"sim-0": NodeFacts("sim-0", ("/data/spill 100 % full",))},
    )
    assert stalled.culprit == "env/1" and stalled.problem.name == "disk-full"
    assert stalled.sentence == (
        "driver waits for trajectories from env[0-1]; "
        "env[1]@sim-0 (pid 19016) waits for a disk and has not moved for 214 s, in simulate: "
        "step (omnigibson/simulator.py:1); sim-0: /data/spill 100 % full"
    )
    assert "spill_dirs" in stalled.action


def test_the_sentence_has_the_chain_if_the_driver_does_not_wait_for_the_culprit():
    sentence = found(
        ["env/0"], [process("env/0", "wait for actions", on=["rollout/0"]), process("rollout/0", "act")]
    ).sentence
    assert "env[0] waits for actions from rollout[0]; rollout[0]@sim-0" in sentence


@pytest.mark.parametrize(
    ("facts", "is_answering", "name"),
    [
        (ProcessFacts("T"), False, "stopped"),
        (ProcessFacts("gone"), False, "process-ended"),
        (ProcessFacts("Z"), False, "process-ended"),
        (ProcessFacts("S", holds_gil=True), False, "gil-held"),
        (ProcessFacts("R", holds_gil=True), True, "no-progress"),  # a process that answers holds it only for a moment
        (ProcessFacts("S"), False, "unresponsive"),
        (ProcessFacts("S"), True, "no-progress"),
    ],
)
def test_problems(facts, is_answering, name):
    assert found(["env/0"], [process("env/0", is_answering=is_answering)], {"env/0": facts}).problem.name == name


def test_idle_workers_with_a_request():
    assert found(["env/0"], [process("env/0", "idle")]).problem.name == "not-delivered"
    full = {"sim-0": NodeFacts("sim-0", ("/tmp 97 % full",))}
    assert found(["env/0"], [process("env/0", "idle")], nodes=full).problem.name == "disk-full"


def test_a_full_disk_on_the_sending_node():
    ranks = [replace(process("actor/0", "idle", host="train-0"), producers=("env/1",)), process("env/1", "idle")]
    assert found(["actor/0"], ranks).problem.name == "on-its-way"
    stalled = found(["actor/0"], ranks, nodes={"sim-0": NodeFacts("sim-0", ("/spill 97 % full",))})
    assert stalled.problem.name == "disk-full"
    assert stalled.sentence.endswith("it comes from env[1]@sim-0 to train-0; sim-0: /spill 97 % full")


def test_a_worker_that_never_started():
    assert found(["env/3"], []).sentence.endswith("env[3] has not answered since it was to be started")


@pytest.mark.parametrize("state", ["T", "gone"])
def test_the_dead_rank_comes_before_those_that_wait_for_it(state):
    ranks = [process(f"actor/{rank}", "update", silence_s=90.0 - rank, is_answering=rank != 2) for rank in range(4)]
    waiting = {f"actor/{rank}": ProcessFacts("S", is_in_collective=True) for rank in range(4)}
    stalled = found([rank.worker for rank in ranks], ranks, waiting | {"actor/2": ProcessFacts(state)})
    assert stalled.culprit == "actor/2"


def test_a_rank_outside_the_collective_comes_before_those_in_it():
    ranks = [process(f"actor/{rank}", "update") for rank in range(3)]
    facts = {f"actor/{rank}": ProcessFacts("S", is_in_collective=rank != 1) for rank in range(3)}
    assert found([rank.worker for rank in ranks], ranks, facts).culprit == "actor/1"


def test_a_rank_that_left_early_comes_before_those_that_wait_for_it():
    ranks = [process("actor/0", "update"), process("actor/1", "idle")]
    stalled = found(["actor/0"], ranks, {"actor/0": ProcessFacts("S", is_in_collective=True)})
    assert (stalled.problem.name, stalled.culprit) == ("rank-left", "actor/1")
    assert stalled.sentence == (
        "driver waits for trajectories from actor[0]; "
        "actor[1]@sim-0 (pid 19016) has left a collective that others wait in and has not moved for 60 s"
    )


def test_one_rank_that_does_more_than_all_others():
    ranks = [process("actor/0", "update"), process("actor/1", "idle"), process("actor/2", "idle")]
    stalled = found(["actor/0"], ranks, {"actor/0": ProcessFacts("S", is_in_collective=True)})
    assert (stalled.problem.name, stalled.culprit) == ("rank-alone", "actor/0")


def test_a_cycle():
    ring = {w: process(w, "x", on=[o]) for w, o in (("env/0", "rollout/0"), ("rollout/0", "env/0"))}
    leaf = Leaf("rollout/0", ("env/0", "rollout/0"), is_cycle=True)
    assert diagnose(Stall("x", ["env/0"], [leaf], ring)).problem.name == "cycle"


def test_format_workers():
    assert format_workers(["actor/0", "actor/1", "actor/3", "env/2"]) == "actor[0-1,3], env[2]"
    assert format_workers(["sim-0 (10.0.0.2)"]) == "sim-0 (10.0.0.2)"
