"""Real-time chunking from question to robot: each row executes its plans at the times that they were made for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.config.checks_of_machines import chunks_can_be_continued
from rlrun.config.loader import compose_only
from rlrun.config.schema import RunConfig
from rlrun.edges.actions import AnswerCheck
from rlrun.edges.observations import Observation, check_observation
from rlrun.edges.spaces import Spaces
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.rollout.backend import ForwardBatch
from rlrun.rollout.continuation import Continuation
from rlrun.system.errors import RunError
from rlrun.workers.late_actions import LateActions
from tests.unit.policies.flow.test_policies import new_policy
from tests.unit.workers.test_late_actions import World

C, S = 4, 8
ON = "evaluation.real_time_chunking.enable=true"


@pytest.fixture(scope="module")
def policy() -> FlowPolicy:
    """A policy that plans S control steps and executes C of them."""
    whole = new_policy("smolvla", f"policy.num_action_chunks={S}")
    whole.num_action_chunks = C
    return whole


def config(*overrides: str) -> RunConfig:
    keys = ["policy=smolvla", f"policy.num_action_chunks={C}", "evaluation.temperature=0", ON]
    return compose_only([*keys, *overrides])


class Clock:
    """A policy whose plans are the control steps from now on, so that a robot in step executes 0, 1, 2, …"""

    def __init__(self, world: World):
        self.world = world
        self.asked: list[tuple[np.ndarray, np.ndarray]] = []

    def plan(self, images: np.ndarray, *given: Any) -> np.ndarray:
        _, _, _, _, coming, goes_on, _, _ = given
        self.asked.append((coming.copy(), goes_on.copy()))
        now = np.array([len(executed) for executed in self.world.executed], np.float32)
        return now[:, None, None] + np.arange(S, dtype=np.float32)[None, :, None]


@pytest.mark.parametrize(("delay", "horizon"), [(0, 10), (1, 10), (2, 3), (3, 3)])
def test_every_step_is_executed_at_its_own_time(
    policy: FlowPolicy, monkeypatch: pytest.MonkeyPatch, delay: int, horizon: int
) -> None:
    world = World(2)
    clock = Clock(world)
    monkeypatch.setattr(policy, "plan", clock.plan)
    run = config(f"env.action_delay={delay}", f"evaluation.real_time_chunking.execution_horizon={horizon}")
    continuation = Continuation(policy, run)
    late = LateActions(delay, 2)
    rows = np.arange(2)
    late.begin(rows)
    check = AnswerCheck("rollout/0", Spaces(1, None, (-np.inf,), (np.inf,), 1, 0), C, 1.0)
    frames = World(2).simulate(rows, np.zeros((2, 1, 1), np.float32)).frames
    for number in range(4):
        begins = np.full(2, number == 0)
        keys = np.zeros(2, np.uint64)
        asked = Observation(0, frames, keys, 0.0, None, rows, begins, coming=late.coming(rows, 1))
        check_observation(asked, 1, run)
        (chunk,) = continuation.act(ForwardBatch.of([asked]), policy_version=0)
        check(asked, chunk)
        frames = late.step(rows, chunk.actions, world.simulate, chunk.further).frames
    num_executed = 4 * C - delay
    assert world.executed == [list(range(num_executed))] * 2
    for number, (coming, goes_on) in enumerate(clock.asked):
        assert goes_on.all() == (number > 0)
        first = C * number - delay
        kept = min(horizon, S - C)
        assert number == 0 or coming[0, :, 0].tolist() == list(range(first, first + kept))


def test_rows_that_begin_have_no_coming_actions_of_the_episode_before() -> None:
    late = LateActions(1, 3)
    rows = np.arange(3)
    late.begin(rows)
    assert late.coming(rows, 2).shape == (3, 0, 2)
    world = World(3)
    actions = np.ones((3, C, 1), np.float32)
    late.step(rows, actions, world.simulate, 2 * actions[:, :2])
    late.begin(rows[1:2])
    assert late.coming(rows, 1)[:, :, 0].tolist() == [[1, 2, 2], [0, 0, 0], [1, 2, 2]]


@pytest.mark.parametrize(
    ("delay", "executed", "remedy"), [(0, 8, "=7"), (1, 8, "=7"), (5, 6, "=3"), (4, 5, "=4"), (7, 8, "=1")]
)
def test_a_plan_without_actions_after_the_delay_is_refused(
    policy: FlowPolicy, monkeypatch: pytest.MonkeyPatch, delay: int, executed: int, remedy: str
) -> None:
    monkeypatch.setattr(policy, "num_action_chunks", executed)
    run = config(f"env.action_delay={delay}", f"policy.num_action_chunks={executed}")
    with pytest.raises(RunError, match="plans too few actions") as refused:
        Continuation(policy, run)
    assert refused.value.key == "evaluation.real_time_chunking.enable"
    assert f"policy.num_action_chunks{remedy}" in refused.value.remedy


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["run=cartpole", ON], "evaluation.real_time_chunking.enable"),
        (["policy=smolvla", ON, "evaluation.server='ws://there:1'"], "evaluation.real_time_chunking.enable"),
        (
            ["policy=smolvla", ON, "env.action_delay=3", "evaluation.real_time_chunking.execution_horizon=2"],
            "evaluation.real_time_chunking.execution_horizon",
        ),
    ],
)
def test_where_it_cannot_work_it_is_refused(overrides: list[str], key: str) -> None:
    (fault,) = chunks_can_be_continued(compose_only(overrides))
    assert fault.key == key and fault.remedy
    assert list(chunks_can_be_continued(compose_only([one for one in overrides if one != ON]))) == []


def test_an_answer_without_further_actions_is_a_fault_of_the_rollout_worker() -> None:
    frames = World(2).simulate(np.arange(2), np.zeros((2, 1, 1), np.float32)).frames
    asked = Observation(0, frames, np.zeros(2, np.uint64), 0.0, None, np.arange(2), np.ones(2, bool))
    check = AnswerCheck("rollout/0", Spaces(1, None, (-1.0,), (1.0,), 1, 0), C, 1.0)
    actions = np.zeros((2, C, 1), np.float32)
    (free,) = ForwardBatch.of([asked]).chunks(actions, actions[..., 0], actions[..., 0], np.zeros(2), np.zeros(0), 0)
    check(asked, free)
    continued = replace(asked, coming=np.zeros((2, 3, 1), np.float32))
    with pytest.raises(RunError, match="further actions"):
        check(continued, free)
    with pytest.raises(RunError, match="env/0: .*coming"):
        check_observation(replace(continued, is_first=None), 1, config())
    with pytest.raises(RunError, match="env/0: .*coming"):
        check_observation(replace(asked, coming=np.full((2, 3, 1), np.nan, np.float32)), 1, config())
