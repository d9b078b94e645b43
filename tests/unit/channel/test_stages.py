"""Groups of env workers under one rollout worker: batched alike always, and not waiting for one another."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rlrun.channel.stages import Farewell, Stages, stages_of
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError


def ask(member, part=0):
    return SimpleNamespace(env_worker=member, part=part)


@pytest.mark.parametrize(
    ("members", "num_stages", "groups"),
    [({2, 0, 1}, 2, [[0, 1], [2]]), ({3, 5}, 3, [[3], [5]]), ({4}, 1, [[4]]), (set(), 2, [[]])],
)
def test_groups(members, num_stages, groups):
    assert stages_of(members, num_stages) == groups


def stages_with(act):
    return Stages(act, Telemetry("rollout/0"), 2, 1, threading.Lock(), 10.0)


def test_a_group_is_answered_while_the_other_has_not_asked():
    batches = []

    def act(observations):
        batches.append([o.env_worker for o in observations])
        return [o.env_worker * 10 for o in observations]

    stages = stages_with(act)
    stages.open(1, {0, 1, 2, 3})
    for member in (1, 0):
        assert list(stages.replies()) == []
        stages.ask(1, ask(member), member)
    assert list(stages.replies()) == [(0, 0), (1, 10)]
    for member in (2, 3):
        stages.ask(1, ask(member), member)
    assert list(stages.replies()) == [(2, 20), (3, 30)]
    assert batches == [[0, 1], [2, 3]]


def test_a_group_is_told_before_the_next_one_is_inferred():
    events = []

    def act(observations):
        events.append([o.env_worker for o in observations])
        return ["chunk"] * len(observations)

    stages = stages_with(act)
    stages.open(1, {0, 1})
    for member in (0, 1):
        stages.ask(1, ask(member), member)
    for asker, _ in stages.replies():
        events.append(asker)
    assert events == [[0], 0, [1], 1]


def test_leaving_concerns_the_own_group():
    stages = stages_with(lambda observations: ["chunk" for _ in observations])
    stages.open(1, {0, 1, 2})
    stages.leave(1, Farewell(1, 0))
    for member in (0, 2):
        stages.ask(1, ask(member), member)
    assert list(stages.replies()) == [(0, "chunk"), (2, "chunk")]


def test_who_was_replaced_meanwhile_is_turned_away():
    stages = stages_with(lambda observations: ["chunk" for _ in observations])
    stages.open(1, {0, 1})
    stages.open(2, {1})
    stages.leave(1, Farewell(0, 0))
    stages.ask(1, ask(0), "late")
    ((asker, over),) = stages.replies()
    assert asker == "late" and isinstance(over, RunError) and "conversation 1, which is over" in over.message
    stages.ask(2, ask(1), "in time")
    assert list(stages.replies()) == [("in time", "chunk")]


def parts_with(act):
    return Stages(act, Telemetry("rollout/0"), 3, 2, threading.Lock(), 10.0)


def test_the_same_part_of_all_env_workers_is_a_group():
    batches = []

    def act(observations):
        batches.append([(o.env_worker, o.part) for o in observations])
        return [f"{o.env_worker}.{o.part}" for o in observations]

    stages = parts_with(act)
    stages.open(1, {4, 5})
    stages.ask(1, ask(5, 0), "5.0")
    stages.ask(1, ask(5, 1), "5.1")
    assert list(stages.replies()) == []
    stages.ask(1, ask(4, 1), "4.1")
    assert list(stages.replies()) == [("4.1", "4.1"), ("5.1", "5.1")]
    stages.ask(1, ask(4, 0), "4.0")
    assert list(stages.replies()) == [("4.0", "4.0"), ("5.0", "5.0")]
    assert batches == [[(4, 1), (5, 1)], [(4, 0), (5, 0)]]


def test_a_part_that_leaves_frees_those_that_would_wait_for_it_and_no_others():
    stages = parts_with(lambda observations: ["chunk" for _ in observations])
    stages.open(1, {4, 5})
    stages.ask(1, ask(5, 0), "5.0")
    stages.ask(1, ask(5, 1), "5.1")
    stages.leave(1, Farewell(4, 0))
    assert list(stages.replies()) == [("5.0", "chunk")]
    stages.leave(1, Farewell(4, 1))
    assert list(stages.replies()) == [("5.1", "chunk")]
