"""A simulator that breaks is restarted; what ran in it is void, whatever the way in which it broke."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlrun.envs.plausibility import reward_limit
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
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
    "black frames": {"images": np.zeros((4, 1, 4, 4, 3), np.uint8)},
    "noise": {"images": np.random.default_rng(0).integers(0, 256, (4, 1, 4, 4, 3), np.uint8)},
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


def test_the_limit_ends_it(env, simulators):
    env.step_chunk(ACTIONS)  # a sound one: later faults are infra faults, however equal
    for _ in range(2):
        simulators.made[-1].step_chunk = raising
        env.step_chunk(ACTIONS)
        env.reset(ROWS, ROWS)
    simulators.made[-1].step_chunk = raising
    with pytest.raises(RunError, match="broke 3 times") as failure:
        env.step_chunk(ACTIONS)
    assert failure.value.exit_status is ExitStatus.worker_lost and failure.value.key == "env.restart_limit"
    assert "lost the renderer" in str(failure.value)


def test_a_simulator_that_does_not_start_again_counts(simulators):
    starts = iter([simulators, raising, simulators])

    def make():
        return next(starts)()

    env = RestartingEnv(make, limit=2)
    env.reset(ROWS, ROWS)
    simulators.made[0].step_chunk = raising
    assert env.step_chunk(ACTIONS).infra_fault.all() and len(env.faults) == 2


def test_equal_faults_before_any_chunk_are_a_bug_of_the_simulator(simulators, tmp_path) -> None:
    env = RestartingEnv(simulators, limit=8, log_path=lambda: tmp_path / "env-0.log")
    env.reset(ROWS, ROWS)
    with pytest.raises(RunError, match="breaks in the same way") as caught:
        for _ in range(9):
            simulators.made[-1].step_chunk = raising
            env.step_chunk(ACTIONS)
            env.reset(ROWS, ROWS)
    error = caught.value
    assert error.exit_status is ExitStatus.bad_config and len(env.faults) == 3
    assert "OSError: lost the renderer" in str(error.cause) and "env-0.log" in str(error.remedy)


def test_different_first_faults_are_not_one_bug(simulators) -> None:
    env = RestartingEnv(simulators, limit=8)
    env.reset(ROWS, ROWS)
    for number in range(8):

        def broken(*_, number=number):
            raise OSError(f"lost connection {number}")

        simulators.made[-1].step_chunk = broken
        assert env.step_chunk(ACTIONS).infra_fault.all()
        env.reset(ROWS, ROWS)
