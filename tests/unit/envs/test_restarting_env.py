"""A simulator that breaks is restarted; what ran in it is void, whatever the way in which it broke."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlrun.envs.plausibility import SOON, reward_limit
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.system.errors import ExitStatus, RunError
from tests.unit.workers.counting_env import NUM_ACTIONS, NUM_STEPS, CountingEnv

ROWS = np.arange(4)
ACTIONS = np.zeros((4, NUM_STEPS, NUM_ACTIONS), np.float32)


class Simulators:
    """Makes them, and keeps those that were made."""

    def __init__(self):
        self.made = []

    def __call__(self):
        self.made.append(CountingEnv(4))
        return self.made[-1]


@pytest.fixture
def simulators():
    return Simulators()


@pytest.fixture
def env(simulators):
    env = RestartingEnv(simulators, limit=2, max_abs_reward=1e6)
    env.reset(ROWS, ROWS)
    return env


def raising(*_):
    raise OSError("lost the renderer")


def changed(step, **fields):
    """`step_chunk` of a simulator that returns something else than it should."""

    def call(actions, active=None):
        result = step(actions, active)
        frames = dataclasses.replace(result.frames, **{k: v for k, v in fields.items() if k in ("images", "proprio")})
        others = {k: v for k, v in fields.items() if k not in ("images", "proprio")}
        return dataclasses.replace(result, frames=frames, **others)

    return call


GARBAGE = {
    "frames of floats": {"images": np.ones((4, 1, 4, 4, 3), np.float32)},
    "rows missing": {"images": np.ones((3, 1, 4, 4, 3), np.uint8)},
    "proprioception not finite": {"proprio": np.full((4, 2), np.nan, np.float32)},
    "proprioception of another size": {"proprio": np.zeros((4, 3), np.float32)},
    "rewards not finite": {"rewards": np.full((4, NUM_STEPS), np.inf, np.float32)},
    "rewards absurd": {"rewards": np.full((4, NUM_STEPS), -1e30, np.float32)},
    "rewards of another shape": {"rewards": np.zeros((4, 1), np.float32)},
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_a_fault_of_every_row(env, simulators, garbage):
    simulators.made[0].step_chunk = changed(simulators.made[0].step_chunk, **GARBAGE[garbage])
    result = env.step_chunk(ACTIONS)
    assert result.infra_fault.all() and not result.step_valid.any() and not result.rewards.any()
    assert len(env.faults) == 1 and simulators.made[0].is_closed
    env.reset(ROWS, ROWS)
    assert not env.step_chunk(ACTIONS).infra_fault.any()


@pytest.mark.parametrize(
    ("declared", "configured", "limit"),
    [(1.5, 1e6, 15.0), (1.5, None, 15.0), (None, 1e6, 1e6), (1e6, 10.0, 10.0), (None, None, np.inf)],
)
def test_the_largest_reward_that_is_believed(declared, configured, limit):
    assert reward_limit(declared, configured) == limit


def at(array, index, value):
    changed = array.copy()
    changed[index] = value
    return changed


NAMED = {  # what the second chunk of the episode with seed 2 returns -> the fault
    "a reward": (lambda r: {"rewards": at(r.rewards, (2, 1), np.nan)}, "reward is nan at control step 4 of seed 2"),
    "a part of the state": (
        lambda r: {"proprio": at(r.frames.proprio, (2, 1), np.inf)},
        "proprioception 1 is inf at control step 4 of seed 2",
    ),
    "a score": (lambda r: {"q_score": at(r.q_score, 2, np.nan)}, "q-score is nan at control step 4 of seed 2"),
    "two ends": (
        lambda r: {name: at(np.zeros(4, bool), 2, True) for name in ("terminated", "truncated")},
        "both terminated and truncated at control step 4 of seed 2",
    ),
    "a gap": (
        lambda r: {"step_valid": at(r.step_valid, (2, 0), False)},
        "valid after invalid ones at control step 4 of seed 2",
    ),
    "flags as numbers": (lambda r: {"terminated": np.zeros(4)}, "terminated are float64, expected bool"),
    "flags of too few rows": (lambda r: {"success": np.zeros(3, bool)}, "success are (3,), expected (4,)"),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_is_named_with_field_step_and_seed(env, simulators, name):
    change, text = NAMED[name]
    result = env.step_chunk(ACTIONS)
    step = simulators.made[0].step_chunk
    simulators.made[0].step_chunk = lambda *given: changed(lambda *_: step(*given), **change(result))(*given)
    assert env.step_chunk(ACTIONS).infra_fault.all()
    assert text in env.faults[0]


def test_a_row_that_broke_alone_is_told_with_its_seed(env, simulators):
    result = env.step_chunk(ACTIONS)
    infos = ({}, {"fault": "reward is nan at control step 4"}, {}, {})
    broken = at(np.zeros(4, bool), 1, True)
    simulators.made[0].step_chunk = changed(simulators.made[0].step_chunk, infra_fault=broken, infos=infos)
    assert env.step_chunk(ACTIONS).infra_fault.tolist() == broken.tolist() and not result.infra_fault.any()
    assert env.drain_row_faults() == ("row 1, seed 1: reward is nan at control step 4",)
    assert env.drain_row_faults() == ()


def test_an_absurd_reward_is_told_with_value_and_row(simulators):
    env = RestartingEnv(simulators, limit=2, max_abs_reward=100.0)
    env.reset(ROWS, ROWS)
    rewards = np.full((4, NUM_STEPS), 100.0, np.float32)
    simulators.made[0].step_chunk = changed(simulators.made[0].step_chunk, rewards=rewards)
    assert not env.step_chunk(ACTIONS).infra_fault.any() and not env.faults
    rewards[2, 1] = -1e30
    assert env.step_chunk(ACTIONS).infra_fault.all()
    assert "a reward of -1e+30 in row 2: more than 100" in env.faults[0]


def test_a_simulator_that_raises_in_a_step(env, simulators):
    simulators.made[0].step_chunk = raising
    active = np.array([True, False, True, False])
    assert env.step_chunk(ACTIONS, active).infra_fault.tolist() == active.tolist()
    assert len(simulators.made) == 2


def test_raising_in_a_reset_voids_the_other_rows_at_their_next_chunk(env, simulators):
    env.step_chunk(ACTIONS)
    simulators.made[0].reset = raising
    frames = env.reset(ROWS[:1], ROWS[:1] + 7)
    assert frames.proprio[0].tolist() == [7, 0] and simulators.made[1].resets == [(0, 7)]
    result = env.step_chunk(ACTIONS)
    assert result.infra_fault.tolist() == [False, True, True, True]
    assert result.step_valid[0].all() and not result.step_valid[1:].any()
    env.reset(ROWS[1:], ROWS[1:])
    assert not env.step_chunk(ACTIONS).infra_fault.any() and len(env.faults) == 1


def test_only_lost_rows_are_stepped(env, simulators):
    simulators.made[0].reset = raising
    env.reset(ROWS[:1], ROWS[:1])
    others = ROWS > 0
    assert env.step_chunk(ACTIONS, others).infra_fault.tolist() == others.tolist()


def test_a_bad_action_is_no_fault_of_the_simulator(env):
    with pytest.raises(ValueError, match="the policy is broken"):
        env.step_chunk(np.full_like(ACTIONS, np.nan))
    assert env.faults == []


def failing(text):
    def call(*_):
        raise OSError(text)

    return call


def test_the_limit_ends_it(env, simulators):
    for number in range(2):
        simulators.made[-1].step_chunk = failing(f"lost renderer {number}")
        env.step_chunk(ACTIONS)
        env.reset(ROWS, ROWS)
    simulators.made[-1].step_chunk = failing("lost renderer 2")
    with pytest.raises(RunError, match="broke 3 times") as failure:
        env.step_chunk(ACTIONS)
    assert failure.value.exit_status is ExitStatus.worker_lost and failure.value.key == "env.restart_limit"
    assert "lost renderer 2" in str(failure.value)


def test_a_simulator_that_does_not_start_again_counts(simulators):
    starts = iter([simulators, raising, simulators])

    def make():
        return next(starts)()

    env = RestartingEnv(make, limit=2)
    env.reset(ROWS, ROWS)
    simulators.made[0].step_chunk = raising
    assert env.step_chunk(ACTIONS).infra_fault.all() and len(env.faults) == 2


@pytest.mark.parametrize("num_chunks", [0, 3])
def test_equal_faults_soon_after_one_another_are_a_bug_of_the_simulator(simulators, tmp_path, num_chunks) -> None:
    env = RestartingEnv(simulators, limit=8, log_path=lambda: tmp_path / "env-0.log", worker="env/3")
    env.reset(ROWS, ROWS)
    with pytest.raises(RunError, match="breaks in the same way") as caught:
        for _ in range(9):
            for _ in range(num_chunks):
                assert not env.step_chunk(ACTIONS).infra_fault.any()
            simulators.made[-1].step_chunk = raising
            env.step_chunk(ACTIONS)
            env.reset(ROWS, ROWS)
    error = caught.value
    assert error.exit_status is ExitStatus.bad_config and len(env.faults) == 3
    assert "The simulator of env/3 breaks" in error.message
    assert "OSError: lost the renderer" in str(error.cause) and "env-0.log" in str(error.remedy)


def test_rare_equal_faults_are_infra_faults(simulators) -> None:
    """As a renderer that crashes once in thousands of chunks."""
    env = RestartingEnv(simulators, limit=8)
    for _ in range(5):
        env.reset(ROWS, ROWS)
        for number in range(SOON + 1):
            if number % 5 == 0:
                env.reset(ROWS, ROWS)
            env.step_chunk(ACTIONS)
        simulators.made[-1].step_chunk = raising
        assert env.step_chunk(ACTIONS).infra_fault.all()
    assert len(env.faults) == 5


def test_different_first_faults_are_not_one_bug(simulators) -> None:
    env = RestartingEnv(simulators, limit=8)
    env.reset(ROWS, ROWS)
    for number in range(8):

        def broken(*_, number=number):
            raise OSError(f"lost connection {number}")

        simulators.made[-1].step_chunk = broken
        assert env.step_chunk(ACTIONS).infra_fault.all()
        env.reset(ROWS, ROWS)
