"""From the workers that the driver waits for to those that block them, on small graphs."""

from __future__ import annotations

import pytest

from rlrun.system.status import OpenWait
from rlrun.watchdog.wait_graph import Leaf, Process, Transit, leaves, transit


def process(worker, phase="simulate", on=(), is_answering=True, silence_s=60.0):
    waits = (OpenWait("something", tuple(on), silence_s, 600.0),) if on else ()
    return Process(worker, "lab", 4711, phase, False, silence_s, waits, is_answering)


def ends(pending, *processes):
    return [(leaf.worker, leaf.is_cycle) for leaf in leaves(pending, {p.worker: p for p in processes})]


def asks(env, rollout="rollout/0"):
    return process(env, "wait for actions", [rollout])


@pytest.mark.parametrize(
    ("pending", "processes", "found"),
    [
        # a worker that works, or does not answer, is a leaf
        (["env/0"], [process("env/0")], ["env/0"]),
        (["env/0"], [process("env/0", "wait for actions", ["rollout/0"], is_answering=False)], ["env/0"]),
        # an unknown worker
        (["env/0"], [], ["env/0"]),
        (["env/0"], [asks("env/0")], ["rollout/0"]),
        # env/0 waits for its policy, which works
        (["env/0"], [asks("env/0"), process("rollout/0", "act")], ["rollout/0"]),
        # both envs share a policy, which waits for the slow one
        (
            ["env/0", "env/1"],
            [asks("env/0"), process("rollout/0", "idle", ["env/1"]), process("env/1")],
            ["env/1"],
        ),
        # two policies, one of them slow; the env of the other goes on
        (
            ["env/0", "env/1"],
            [asks("env/0", "rollout/0"), process("rollout/0", "act"), process("env/1")],
            ["env/1", "rollout/0"],
        ),
        # three in a chain
        (
            ["actor/0"],
            [process("actor/0", "update", ["env/0"]), asks("env/0"), process("rollout/0", "act")],
            ["rollout/0"],
        ),
        # idle with a request: its input is still being produced
        (
            ["rollout/0", "actor/1"],
            [process("rollout/0", "idle"), process("actor/1", "pack weights")],
            ["actor/1"],
        ),
        # all are idle with a request
        (["env/0", "env/1"], [process("env/0", "idle"), process("env/1", "idle")], ["env/0", "env/1"]),
        # an unresponsive worker among idle ones
        (
            ["env/0", "env/1"],
            [process("env/0", "idle"), process("env/1", "idle", is_answering=False)],
            ["env/1"],
        ),
        # ranks in a collective count as working
        (["actor/0", "actor/1"], [process("actor/0", "update"), process("actor/1", "update")], ["actor/0", "actor/1"]),
        # workers outside the graph are no leaves
        (["env/0"], [process("env/0"), process("env/1", is_answering=False)], ["env/0"]),
    ],
)
def test_ends(pending, processes, found):
    assert sorted(ends(pending, *processes)) == [(worker, False) for worker in found]


def test_a_cycle_is_found_if_all_workers_are_in_it():
    ring = [process("env/0", "x", ["rollout/0"]), process("rollout/0", "y", ["env/0"])]
    assert ends(["env/0"], *ring) == [("rollout/0", True)]
    assert ends(["env/0", "env/1"], *ring, process("env/1")) == [("env/1", False)]


def test_the_chain_leads_to_the_leaf():
    known = {p.worker: p for p in [asks("env/0"), process("rollout/0", "idle", ["env/1"]), process("env/1")]}
    (leaf,) = leaves(["env/0"], known)
    assert leaf.chain == ("env/0", "rollout/0", "env/1")


def at(host, worker, phase="idle", on=(), producers=(), is_answering=True):
    waits = (OpenWait("something", tuple(on), 60.0, 600.0),) if on else ()
    return Process(worker, host, 4711, phase, False, 60.0, waits, is_answering, producers=producers)


@pytest.mark.parametrize(
    ("pending", "processes", "found"),
    [
        # the request of env/0 has not reached its policy
        (["env/0"], [at("sim", "env/0", "wait", ["rollout/0"]), at("train", "rollout/0")], ("env/0", "rollout/0")),
        # both sent a request, one arrived: the policy waits for the other
        (
            ["env/0"],
            [at("sim", "env/0", "wait", ["rollout/0"]), at("train", "rollout/0", on=["env/0"])],
            ("env/0", "rollout/0"),
        ),
        # the data of env/0 has not reached the actor
        (["actor/0"], [at("train", "actor/0", producers=("env/0",)), at("sim", "env/0")], ("env/0", "actor/0")),
        # on one node no data crosses a link
        (["actor/0"], [at("train", "actor/0", producers=("env/0",)), at("train", "env/0")], None),
        # it works, or does not answer: the link is not to blame
        (["env/0"], [at("sim", "env/0", "wait", ["rollout/0"]), at("train", "rollout/0", "act")], None),
        (["actor/0"], [at("train", "actor/0", producers=("env/0",), is_answering=False), at("sim", "env/0")], None),
    ],
)
def test_transit(pending, processes, found):
    known = {p.worker: p for p in processes}
    (leaf,) = leaves(pending, known)
    way = transit(leaf, known)
    assert way == (None if found is None else Transit((found[0],), found[1], "sim", "train"))


def test_an_unknown_sender_is_no_transit():
    assert transit(Leaf("actor/0", ("actor/0",)), {"actor/0": at("train", "actor/0", producers=("env/9",))}) is None
