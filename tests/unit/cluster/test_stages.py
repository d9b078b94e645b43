"""Groups of env workers under one rollout worker: batched alike always, and not waiting for one another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rlrun.cluster.stages import Stages, stages_of
from rlrun.config.errors import RunError
from rlrun.observability.telemetry import Telemetry


def ask(member):
    return SimpleNamespace(env_worker=member)


@pytest.mark.parametrize(
    ("members", "num_stages", "groups"),
    [({2, 0, 1}, 2, [[0, 1], [2]]), ({3, 5}, 3, [[3], [5]]), ({4}, 1, [[4]]), (set(), 2, [[]])],
)
def test_groups(members, num_stages, groups):
    assert stages_of(members, num_stages) == groups


def test_a_group_is_answered_while_the_other_has_not_asked():
    batches = []

    def act(observations):
        batches.append([o.env_worker for o in observations])
        return [o.env_worker * 10 for o in observations]

    stages = Stages(act, Telemetry("rollout/0"), 2, threading.Lock())
    stages.open(1, {0, 1, 2, 3})
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda member: stages.act(1, ask(member), 10.0), (1, 0))) == [10, 0]
        assert list(pool.map(lambda member: stages.act(1, ask(member), 10.0), (2, 3))) == [20, 30]
    assert batches == [[0, 1], [2, 3]]


def test_leaving_concerns_the_own_group():
    stages = Stages(lambda observations: ["chunk" for _ in observations], Telemetry("rollout/0"), 2, threading.Lock())
    stages.open(1, {0, 1, 2})
    stages.leave(1, 1)
    assert stages.act(1, ask(0), 10.0) == "chunk" and stages.act(1, ask(2), 10.0) == "chunk"


def test_who_was_replaced_meanwhile_is_turned_away():
    stages = Stages(lambda observations: ["chunk" for _ in observations], Telemetry("rollout/0"), 2, threading.Lock())
    stages.open(1, {0, 1})
    stages.open(2, {1})
    stages.leave(1, 0)
    with pytest.raises(RunError, match="conversation 1; 2 is going on"):
        stages.act(1, ask(0), 10.0)
    assert stages.act(2, ask(1), 10.0) == "chunk"
